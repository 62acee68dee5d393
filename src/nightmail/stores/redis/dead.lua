-- Dead letters of a queue that match every given condition, newest first.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many; ARGV[6] begin below this id, or nothing
-- ARGV[7]  died more than this many microseconds ago, or nothing
-- ARGV[8]  a byte and the reason, or nothing; ARGV[9] a byte and a text that the error contains, or nothing
-- ARGV[10] how many bytes of bodies and headers; the first dead letter always fits
-- then ids, newest first, to consider only these
--
-- Answers where to go on (nothing: that was all), the dead letters, and 1 if it stopped at the byte limit. Looks at
-- a portion at most, unless ids are given: see letters.lua.

need({ 'HMGET', 'HGET' })
local q, room = queues[1], tonumber(ARGV[5])
local records, go_on = {}, ''

local ids = {}
bytes_left = tonumber(ARGV[10])
if #ARGV > 10 then
  for place = 11, #ARGV do
    local id = ARGV[place]
    if (ARGV[6] == '' or id < ARGV[6]) and redis.call('ZSCORE', q.dead, id) then
      ids[#ids + 1] = id
    end
  end
else
  local from = ARGV[6] ~= '' and '(' .. ARGV[6] or '+'
  ids = redis.call('ZREVRANGEBYLEX', q.dead, from, '-', 'LIMIT', 0, MOST_LOOKED_AT)
  go_on = ids[MOST_LOOKED_AT] or ''
end

local id_before = ''
for _, id in ipairs(ids) do
  if #records == room or #records == MOST_READ then
    go_on = id_before
    break
  end
  id_before = id
  local l = is_meant(q, id, ARGV[7], ARGV[8], ARGV[9]) and read_letter(q, id)
  if l then
    local body = body_of(q, id)
    if not fits(l, body) then
      return { '', table.concat(records), 1 }
    end
    records[#records + 1] = letter_record(1, id, l, body)
  end
end
return { go_on, table.concat(records), 0 }
