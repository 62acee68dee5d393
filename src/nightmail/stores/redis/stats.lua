-- Counts of a queue.
--
-- KEYS     the queue's tag
--
-- Answers how many are ready, scheduled, running, superseded and dead, and for how many microseconds the oldest
-- ready one has been due (-1: none is).

need({ 'HMGET' })
local q = queues[1]
q.replaced = redis.call('ZCARD', q.superseded)
local ready, scheduled = redis.call('ZCARD', q.blocked), 0
local oldest = math.huge

local function since(due)
  if due <= now then
    oldest = math.min(oldest, due)
  end
end

-- The due time of the first message in a sorted set that is not superseded.
local function first_of(place)
  local passed = 0
  while true do
    local found = redis.call('ZRANGE', place, passed, passed, 'WITHSCORES')
    if not found[1] then
      return math.huge
    elseif not redis.call('ZSCORE', q.superseded, found[1]) then
      return tonumber(found[2])
    end
    passed = passed + 1
  end
end

local places = { q.later }
for level = 0, 9 do
  places[#places + 1] = q.due .. level
end
for _, place in ipairs(places) do
  local due = redis.call('ZCOUNT', place, '-inf', now)
  ready = ready + due
  scheduled = scheduled + redis.call('ZCARD', place) - due
  since(first_of(place))
end
since(first_of(q.blocked))

local ended = redis.call('ZRANGEBYSCORE', q.run, '-inf', now)
ready = ready + #ended
for _, id in ipairs(ended) do
  local s = state_of(q, id)
  if s and superseded(q, id) == 0 then
    since(s.due)
  end
end
local running_now = redis.call('ZCARD', q.run) - #ended

-- Those replaced while they ran are counted separately, wherever they are.
local replaced = redis.call('ZRANGE', q.superseded, 0, -1)
for _, id in ipairs(replaced) do
  local s = state_of(q, id)
  if running(q, id) then
    running_now = running_now - 1
  elseif s and s.due > now then
    scheduled = scheduled - 1
  else
    ready = ready - 1
  end
end

return {
  ready, scheduled, running_now, #replaced, redis.call('ZCARD', q.dead),
  oldest < math.huge and string.format('%.0f', now - oldest) or '-1',
}
