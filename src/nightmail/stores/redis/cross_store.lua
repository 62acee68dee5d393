-- The second step of moving dead letters to a queue in another slot: store each as a message, unless it already is.
--
-- KEYS     the queue's tag
-- then for each dead letter: the id of the move, the priority, the sizes of timer id and ordering key; then these two
-- and the headers; and its body
--
-- Answers the id of each message, sixteen spaces for one whose timer id is taken, or goes to a later one of these.
-- B:moved has the id of each move and of its message, until the dead letter is gone: a repeated move answers the same.

local FACTS = '>c16BI4I4'
local NOTHING = string.rep(' ', 16)
local q = queues[1]

local function read(facts, body)
  local m = { body = body }
  local timer, key, from
  m.move, m.priority, timer, key, from = struct.unpack(FACTS, facts)
  m.timer = timer > 0 and facts:sub(from, from + timer - 1) or nil
  m.key = key > 0 and facts:sub(from + timer, from + timer + key - 1) or nil
  m.headers = facts:sub(from + timer + key)
  local before = redis.call('ZRANGEBYLEX', q.moved, '[' .. m.move, '[' .. m.move .. '\255', 'LIMIT', 0, 1)[1]
  m.arrived = before and before:sub(17)
  return m
end

local function is_taken(timer)
  local owner = redis.call('HGET', q.timers, timer)
  return owner and state_of(q, owner) ~= nil
end

local function store(m)
  local id = next_id(m.move, q.highest)
  local s = {
    due = now, published = now, expires = 0, claimed = 0, first = 0, last = 0, attempts = 0, deliveries = 0,
    priority = m.priority, superseded = 0, started = 0,
  }
  redis.call('HSET', q.message .. id, 'body', m.body, 'state', pack_state(s), 'headers', m.headers)
  if m.timer then
    redis.call('HSET', q.message .. id, 'timer', m.timer)
    redis.call('HSET', q.timers, m.timer, id)
  end
  if m.key then
    redis.call('HSET', q.message .. id, 'key', m.key)
  end
  enter(q, id, s, m.key)
  redis.call('ZADD', q.moved, 0, m.move .. id)
  q.highest = id
  q.rung = true
  return id
end

need({ 'SET' })
guard_lines(q)
redis.call('ZCARD', q.moved)
q.before = last_id(q)
q.highest = q.before
local moves, owners, ids = {}, {}, {}
for place = 5, #ARGV, 2 do
  local m = read(ARGV[place], ARGV[place + 1])
  moves[#moves + 1] = m
  if m.timer and not m.arrived and not is_taken(m.timer) then
    -- Of several with one timer id, the last one gets it.
    owners[m.timer] = m
  end
end
for place, m in ipairs(moves) do
  if m.arrived then
    ids[place] = m.arrived
  elseif not m.timer or owners[m.timer] == m then
    ids[place] = store(m)
  else
    ids[place] = NOTHING
  end
end
if q.highest ~= q.before then
  redis.call('SET', q.last, q.highest)
end
ring()
return table.concat(ids)
