-- Remove the waiting owner of a timer id, and its dedup window.
--
-- KEYS     the queue's tag
-- ARGV[5]  the timer id
--
-- Answers 1 if one was removed.

local q, timer = queues[1], ARGV[5]
guard_lines(q)
redis.call('ZCARD', q.windows)
local id = redis.call('HGET', q.timers, timer)
local found = id and fields(q, id, 'state', 'key') or {}
local s = unpack_state(found[1])
if not s or running(q, id) then
  return 0
end
local key = found[2] or nil
leave(q, id, s, key)
redis.call('HDEL', q.timers, timer)
redis.call('ZREM', q.windows, timer)
redis.call('UNLINK', q.message .. id)
free(q, id, key)
ring()
return 1
