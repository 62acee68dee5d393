-- Pause a queue, or an ordering key in it, or change such a pause.
--
-- KEYS     the queue's tag
-- ARGV[5]  the field of the pause, see pauses.lua
-- ARGV[6]  how its end is given: in, at, or nothing if it has none; ARGV[7] a delay or a moment in microseconds
-- ARGV[8]  who pauses it; ARGV[9] a byte and the reason, or nothing

local q, field = queues[1], ARGV[5]
need({ 'DEL', 'HGET', 'HSET', 'HDEL' })

local pause = { since = now, till = 0, length = 0, by = ARGV[8], reason = ARGV[9] }
if ARGV[6] == 'in' then
  pause.length = tonumber(ARGV[7])
  pause.till = math.max(after(pause.length), now)
elseif ARGV[6] == 'at' then
  pause.till = math.max(math.min(tonumber(ARGV[7]), LATEST), now)
end

local before = redis.call('HGET', q.controls, field)
before = before and unpack_pause(before)
if before and not is_over(field, before) then
  pause.since = before.since
end
if is_over(field, pause) then
  redis.call('HDEL', q.controls, field)
else
  redis.call('HSET', q.controls, field, pack_pause(pause))
end
q.rung = true
ring()
