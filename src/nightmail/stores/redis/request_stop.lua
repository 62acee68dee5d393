-- Ask the holder of a message to stop it.
--
-- KEYS     the queue's tag
-- ARGV[5]  the id; ARGV[6] who asks
--
-- Answers 1 if the message is in this queue and runs.

local q, id = queues[1], ARGV[5]
need({ 'DEL', 'HMGET', 'HSET' })
redis.call('HLEN', q.stops)
-- Kept outside the message's hash: a caller that acknowledges in its own MULTI watches the hash, and would be refused.
if not running(q, id) or not state_of(q, id) then
  return 0
end
redis.call('HSET', q.stops, id, ARGV[6])
return 1
