-- Forget a worker.
--
-- KEYS     the tag of the registry
-- ARGV[5]  its id; ARGV[6] for how many microseconds it is known who consumed a queue last

local workers, seen = KEYS[1] .. ':workers', KEYS[1] .. ':seen'
need({ 'DEL', 'HGET', 'HGETALL', 'HSET', 'HDEL', 'ZREM', 'ZSCORE' })

note_leaving(redis.call('HGET', workers, ARGV[5]), tonumber(redis.call('ZSCORE', seen, ARGV[5])) or 0, {})
local new, gone = changes_for_left(now - tonumber(ARGV[6]))
redis.call('HDEL', workers, ARGV[5])
redis.call('ZREM', seen, ARGV[5])
write_left(new, gone)
