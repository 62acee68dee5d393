-- Write the outcomes of deliveries. Each is fenced by its id and its token, and by nothing else.
--
-- KEYS     the queues' tags
-- ARGV[5]  1: done messages go into the delivered history
-- ARGV[6]  the settlements, concatenated: the place of the queue, how it ended, a delay, the id, the token
-- then for each that is dead: its reason, and its error with a byte in front of it if there is one
-- and for each that is to be retried, in the same order: its error, or nothing
--
-- Answers a byte for each: h for held, l for lost.

local SETTLEMENT = '>I2Bdc16c16'
local DONE, RETRY, RELEASE, DEAD, DEAD_AFTER_RUN = 0, 1, 3, 4, 5 -- 2 is postponed.

local answers = {}
local text = 7

local function ended(q, id, timer, key)
  release_timer(q, id, timer)
  free(q, id, key)
end

local function keep(q, id)
  redis.call('RENAME', q.message .. id, q.kept .. id)
  redis.call('HDEL', q.kept .. id, 'token', 'last_error')
  redis.call('ZADD', q.delivered, now, id)
end

local function count_attempt(s)
  s.attempts = one_more(s.attempts)
  if s.first == 0 then
    s.first = s.claimed
  end
  s.last = s.claimed
end

local function bury(q, id, s, ran, reason, error)
  if ran then
    count_attempt(s)
  end
  local said = error ~= '' and error:sub(2) or nil
  local new, group = new_letter(q, id, reason, said and fingerprint(said))
  local into = q.letter .. new
  redis.call('RENAME', q.message .. id, into)
  redis.call('HDEL', into, 'token', 'last_error')
  redis.call('HSET', into, 'state', pack_state(s), 'message', id, 'reason', reason, 'group', group,
    'died', string.format('%.0f', now))
  if said then
    redis.call('HSET', into, 'error', said)
  end
end

local function try_later(q, id, s, key, kind, delay, error)
  if error == '' then
    -- There is an error to forget only after an attempt that failed.
    error = s.last > 0 and '' or nil
  end
  if kind == RETRY then
    count_attempt(s)
    s.deliveries = 0
  else
    s.attempts, s.deliveries, s.first, s.last = 0, 0, 0, 0
  end
  s.due = superseded(q, id) == 1 and now or after(delay)
  bring_back(q, id, s, key, error)
end

local function settle(q, kind, delay, id, token)
  local reason, error = nil, ''
  if kind >= DEAD then
    reason, error, text = ARGV[text], ARGV[text + 1], text + 2
  elseif kind == RETRY then
    error, text = ARGV[text], text + 1
  end
  q.done = q.done or {}
  q.gone = q.gone or {}
  local found = fields(q, id, 'token', 'key', 'timer')
  if found[1] ~= token or q.gone[id] then
    return 'l'
  end
  local timer, key = found[3] or nil, found[2] or nil
  if kind == DONE then
    q.gone[id] = true
    q.done[#q.done + 1] = id
    ended(q, id, timer, key)
    return 'h'
  end
  local s = state_of(q, id)
  if not s then
    bury_unreadable(q, id)
    return 'h'
  end
  leave(q, id, s, key)
  if kind >= DEAD then
    redis.call('ZREM', q.superseded, id)
    bury(q, id, s, kind == DEAD_AFTER_RUN, reason, error)
    ended(q, id, timer, key)
  elseif kind == RELEASE then
    hand_back(q, id, s, key)
  else
    try_later(q, id, s, key, kind, delay, error)
  end
  return 'h'
end

-- Remove all done messages in a few commands, whatever their number.
local function remove_done(q)
  if q.replaced > 0 then
    in_parts('ZREM', q.superseded, q.done)
  end
  if in_parts('ZREM', q.run, q.done) < #q.done then
    in_parts('ZREM', q.expired, q.done)
    for level = 0, 9 do
      in_parts('ZREM', q.due .. level, q.done)
    end
  end
  if ARGV[5] == '1' then
    for _, id in ipairs(q.done) do
      keep(q, id)
    end
    return
  end
  local keys = {}
  for place, id in ipairs(q.done) do
    keys[place] = q.message .. id
  end
  for first = 1, #keys, MANY do
    redis.call('UNLINK', unpack(keys, first, math.min(first + MANY - 1, #keys)))
  end
end

for _, q in ipairs(queues) do
  guard_lines(q)
  redis.call('ZCARD', q.delivered)
end
local from = 1
while from <= #ARGV[6] do
  local place, kind, delay, id, token
  place, kind, delay, id, token, from = struct.unpack(SETTLEMENT, ARGV[6], from)
  answers[#answers + 1] = settle(queues[place], kind, delay, id, token)
end
for _, q in ipairs(queues) do
  if q.done and #q.done > 0 then
    remove_done(q)
  end
end
ring()
return table.concat(answers)
