-- Move dead letters back to their own queue, or to another in the same slot.
--
-- KEYS     the queues' tags
-- ARGV[5]  1: they keep their timer ids
-- then for each dead letter: the place of its queue, the place of the queue it goes to, its id, the id of the new
-- message; and its new headers, or nothing if it keeps its own
--
-- Answers the id of each new message, sixteen spaces for a dead letter that stays.

local FACTS = '>I2I2c16c16'
local NOTHING = string.rep(' ', 16)

local function read(facts)
  local place, target, id, new, from = struct.unpack(FACTS, facts)
  local m = { q = queues[place], to = queues[target], id = id, new = new, headers = facts:sub(from) }
  m.letter = redis.call('ZSCORE', m.q.dead, id) and not is_held(m.q, id) and read_letter(m.q, id) or nil
  return m
end

local function is_taken(q, timer)
  local owner = redis.call('HGET', q.timers, timer)
  return owner and state_of(q, owner) ~= nil
end

local function move(m)
  local q, to, l = m.q, m.to, m.letter
  local id = next_id(m.new, to.highest)
  local into = to.message .. id
  withdraw_for_good(q, m.id)
  redis.call('RENAME', q.letter .. m.id, into)
  redis.call('HDEL', into, 'reason', 'error', 'group', 'died', 'message', 'lease', 'token', 'moving')
  if m.timer then
    redis.call('HSET', to.timers, m.timer, id)
  else
    redis.call('HDEL', into, 'timer')
  end
  if m.headers ~= '' then
    redis.call('HSET', into, 'headers', m.headers)
  end
  local s = {
    due = now, published = now, expires = 0, claimed = 0, first = 0, last = 0, attempts = 0, deliveries = 0,
    priority = l.state.priority, superseded = 0, started = 0,
  }
  redis.call('HSET', into, 'state', pack_state(s))
  if redis.call('HEXISTS', into, 'body') == 0 then
    redis.call('HSET', into, 'body', '')
  end
  enter(to, id, s, l.key)
  to.highest = id
  to.rung = true
  return id
end

need({ 'SET', 'HEXISTS' })
for _, q in ipairs(queues) do
  guard_lines(q)
  guard_letters(q)
  q.before = last_id(q)
  q.highest = q.before
  q.owners = {}
end
local moves, ids = {}, {}
for place = 6, #ARGV do
  local m = read(ARGV[place])
  moves[#moves + 1] = m
  m.timer = m.letter and ARGV[5] == '1' and m.letter.timer or nil
  if m.timer and is_taken(m.to, m.timer) then
    m.letter = nil
  elseif m.timer then
    -- Of several with one timer id, the last one gets it.
    m.to.owners[m.timer] = m
  end
end
for place, m in ipairs(moves) do
  local goes = m.letter and (not m.timer or m.to.owners[m.timer] == m)
  ids[place] = goes and move(m) or NOTHING
end
for _, q in ipairs(queues) do
  if q.highest ~= q.before then
    redis.call('SET', q.last, q.highest)
  end
end
ring()
return table.concat(ids)
