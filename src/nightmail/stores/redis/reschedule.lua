-- Move the waiting owner of a timer id to another due time. An expired lease on it is cleared: its late holder must not
-- settle what the caller was told will run later.
--
-- KEYS     the queue's tag
-- ARGV[5]  the timer id; ARGV[6] `in` or `at`; ARGV[7] the microseconds
--
-- Answers 1 if one was moved.

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
if s.started == 0 then
  free(q, id, key)
end
local given = tonumber(ARGV[7])
s.due = math.max(ARGV[6] == 'in' and after(given) or math.min(given, LATEST), now)
s.claimed = 0
redis.call('HSET', q.message .. id, 'state', pack_state(s), 'token', '')
enter(q, id, s, key)
ring_if_soon(q, s.due)
ring()
return 1
