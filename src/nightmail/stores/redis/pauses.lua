-- What the scripts about pauses share.
--
-- The fields of B:controls: q is a person's pause of the queue, a its automatic one, k and an ordering key that key's.
-- A pause: since when, until when (0: until it is resumed), for how long it was last set, who paused it, and a byte and
-- the reason if there is one.

local PAUSE = '>dddI2'
local PAUSE_SIZE = 26
local PERSON, AUTOMATIC, KEY = 'q', 'a', 'k'

local function pack_pause(pause)
  return struct.pack(PAUSE, pause.since, pause.till, pause.length, #pause.by) .. pause.by .. pause.reason
end

-- One that we did not write is in force until it is resumed: nothing else says what was wanted.
local function unpack_pause(text)
  if #text < PAUSE_SIZE then
    return { since = 0, till = 0, length = 0, by = '', reason = '' }
  end
  local since, till, length, size = struct.unpack(PAUSE, text)
  local by, reason = text:sub(PAUSE_SIZE + 1, PAUSE_SIZE + size), text:sub(PAUSE_SIZE + size + 1)
  return { since = since, till = till, length = length, by = by, reason = reason }
end

-- Whether a pause has ended by itself. An automatic one never does: it is probed.
local function is_over(field, pause)
  return field ~= AUTOMATIC and pause.till > 0 and pause.till <= now
end

-- Calls `each` with the pauses of a queue that are in force; returns the fields of those that are over.
local function each_pause(q, each)
  local found, over = redis.call('HGETALL', q.controls), {}
  for place = 1, #found, 2 do
    local field, pause = found[place], unpack_pause(found[place + 1])
    if is_over(field, pause) then
      over[#over + 1] = field
    else
      each(field, pause)
    end
  end
  return over
end
