-- Note that a worker is alive, and forget those that have not been seen for long.
--
-- KEYS     the tag of the registry
-- ARGV[5]  its id; ARGV[6] what it says about itself; ARGV[7] after how many microseconds a worker is forgotten;
--          ARGV[8] for how many microseconds it is known who consumed a queue last
--
--   B:workers  hash  id to when the worker reported first, a space, and what it said last
--   B:seen     zset  id by when the worker reported last

local workers, seen, id = KEYS[1] .. ':workers', KEYS[1] .. ':seen', ARGV[5]
need({ 'DEL', 'HGET', 'HGETALL', 'HSET', 'HDEL', 'ZADD', 'ZREM', 'ZRANGEBYSCORE', 'ZSCORE' })

local before = redis.call('HGET', workers, id)
local started = before and before:match('^(%d+) ') or string.format('%.0f', now)
local unseen = redis.call('ZRANGEBYSCORE', seen, '-inf', '(' .. string.format('%.0f', now - tonumber(ARGV[7])))
local consumed = {}
for _, queue in ipairs(queues_in(cjson.decode(ARGV[6]))) do
  consumed[queue] = true
end
note_leaving(before, tonumber(redis.call('ZSCORE', seen, id)) or 0, consumed)
for _, other in ipairs(unseen) do
  if other ~= id then
    note_leaving(redis.call('HGET', workers, other), tonumber(redis.call('ZSCORE', seen, other)), {})
  end
end
local new, gone = changes_for_left(now - tonumber(ARGV[8]))

redis.call('HSET', workers, id, started .. ' ' .. ARGV[6])
redis.call('ZADD', seen, now, id)
for _, other in ipairs(unseen) do
  if other ~= id then
    redis.call('HDEL', workers, other)
    redis.call('ZREM', seen, other)
  end
end
write_left(new, gone)
