-- End a pause.
--
-- KEYS     the queue's tag
-- ARGV[5]  the field of the pause, see pauses.lua
--
-- Answers 1 if it was in force.

local q, field = queues[1], ARGV[5]
need({ 'HGET', 'HDEL' })

local pause = redis.call('HGET', q.controls, field)
local in_force = pause and not is_over(field, unpack_pause(pause))
redis.call('HDEL', q.controls, field)
q.rung = true
ring()
return in_force and 1 or 0
