-- Forget a worker.
--
-- KEYS     the tag of the registry
-- ARGV[5]  its id

local workers, seen = KEYS[1] .. ':workers', KEYS[1] .. ':seen'
need({ 'HDEL', 'ZREM' })
redis.call('ZCARD', seen)
redis.call('HDEL', workers, ARGV[5])
redis.call('ZREM', seen, ARGV[5])
