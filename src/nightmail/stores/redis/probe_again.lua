-- A probe did not run: let the next one of its queue through, unless the pause was set or renewed since.
--
-- KEYS     the queue's tag
-- ARGV[5]  when that probe was claimed, in microseconds

local q, claimed_at = queues[1], tonumber(ARGV[5])
need({ 'HGET', 'HSET' })

local found = redis.call('HGET', q.controls, AUTOMATIC)
local pause = found and unpack_pause(found)
if pause and pause.till > now and pause.till - pause.length <= claimed_at then
  pause.till = now
  redis.call('HSET', q.controls, AUTOMATIC, pack_pause(pause))
end
q.rung = true
ring()
