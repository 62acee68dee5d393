-- All that is known about one message, where it is in this queue.
--
-- KEYS     the queue's tag
-- ARGV[5]  its id; ARGV[6] count at most so many messages ahead of it
--
-- Answers the time now, when it was delivered (nothing: it was not), and the message as find.lua does. If it is not
-- here, then its dead letter without the body, and nothing more. Else its token while it runs; who wants it stopped; the
-- message of its ordering key that goes before it; the id of the message that owns its timer id now, if it is superseded;
-- how many are ahead of it; and the pauses of its queue and its key, as list_pauses.lua does. Each may be nothing.

need({ 'HMGET', 'HGET' })
local q, id = queues[1], ARGV[5]
q.replaced = redis.call('ZCARD', q.superseded)

-- The message that goes before others of this key: the holder of the key, or the first that is due.
local function first_of_key(key)
  local first = redis.call('HGET', q.heads, key)
  local s = first and state_of(q, first)
  if s and s.started == 1 then
    return first
  end
  -- Some may be due, but not in line yet. The one with the lowest id goes first.
  local from, to = '[' .. key .. '\0', '(' .. key .. '\0' .. string.format('%016x', now) .. 'g'
  for _, wait in ipairs(redis.call('ZRANGEBYLEX', q.waits, from, to, 'LIMIT', 0, MANY)) do
    local due = wait:sub(-16)
    if redis.call('ZSCORE', q.later, due) and (not first or due < first) then
      first = due
    end
  end
  return first
end

-- How many waiting messages are due before this one.
local function ahead_of(s)
  local most = tonumber(ARGV[6])
  -- Itself, which is counted with those up to it.
  local count = redis.call('ZSCORE', q.run, id) and 0 or -1
  for _, place in ipairs(places_of(q)) do
    local due = string.format('%.0f', s.due)
    count = count + redis.call('ZCOUNT', place, '-inf', '(' .. due) + ties_up_to(place, due, id)
  end

  local function is_ahead(other)
    local its = other ~= id and state_of(q, other)
    return its and (its.due < s.due or (its.due == s.due and other < id))
  end

  for _, other in ipairs(redis.call('ZRANGEBYSCORE', q.run, '-inf', now, 'LIMIT', 0, MANY)) do
    count = count + (is_ahead(other) and 1 or 0)
  end
  for _, other in ipairs(redis.call('ZRANGE', q.superseded, 0, MANY)) do
    count = count - (not running(q, other) and is_ahead(other) and 1 or 0)
  end
  return math.min(math.max(count, 0), most)
end

local function letter_of(message)
  local its = redis.call('HGET', q.letters, message)
  local l = its and redis.call('ZSCORE', q.dead, its) and read_letter(q, its)
  -- Other software may have put another there.
  return l and l.message == message and letter_record(1, its, l, '') or ''
end

local message, s, key, timer = stored_record(q, id)
local answer = { string.format('%.0f', now), redis.call('ZSCORE', q.delivered, id) or '', message or '' }
if not message then
  answer[4] = letter_of(id)
  return answer
end
local runs = running(q, id)
local first = not runs and key and first_of_key(key)
answer[4] = runs and fields(q, id, 'token')[1] or ''
answer[5] = redis.call('HGET', q.stops, id) or ''
answer[6] = first and first ~= id and stored_record(q, first) or ''
answer[7] = s.superseded == 1 and timer and redis.call('HGET', q.timers, timer) or ''
answer[8] = runs and 0 or ahead_of(s)
local names = { PERSON, AUTOMATIC, key and KEY .. key }
for place, text in ipairs(redis.call('HMGET', q.controls, unpack(names))) do
  if text and not is_over(names[place], unpack_pause(text)) then
    answer[#answer + 1] = names[place]
    answer[#answer + 1] = text
  end
end
return answer
