-- When something may be claimed of each of these queues, for idle workers. It changes nothing.
--
-- KEYS     the queues' tags
--
-- Answers for each queue the microseconds until then (0: now; nothing: never, unless something is written), in the order
-- of the tags. It may be too early, never too late: paused keys are not looked at, so that each queue takes the same few
-- commands, whatever is in it.

-- Whether nothing is claimed of a queue because it is paused, and when the first of its pauses ends.
local function closed_until(q)
  local found = redis.call('HMGET', q.controls, PERSON, AUTOMATIC)
  local closed, first = false, math.huge
  for place = 1, 2 do
    local pause = found[place] and unpack_pause(found[place])
    -- An automatic one that has ended is probed: then what is due may be claimed.
    if pause and (pause.till == 0 or pause.till > now) then
      closed = true
      first = math.min(first, pause.till > 0 and pause.till or math.huge)
    end
  end
  return closed, first
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge)
end

local function expected(q)
  local closed, first = closed_until(q)
  if closed then
    return first
  end
  first = math.min(first_score(q.run), first_score(q.later))
  for level = 0, 9 do
    first = math.min(first, first_score(q.due .. level))
  end
  return first
end

local answer = {}
for place, q in ipairs(queues) do
  local first = expected(q)
  answer[place] = first < math.huge and string.format('%.0f', math.max(first - now, 0)) or ''
end
return answer
