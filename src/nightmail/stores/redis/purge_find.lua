-- Ids of unleased dead letters of a queue that match every given condition, oldest first.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many; ARGV[6] begin above this id, or nothing
-- ARGV[7]  died more than this many microseconds ago, or nothing
-- ARGV[8]  a byte and the reason, or nothing; ARGV[9] a byte and a text that the error contains, or nothing
-- then ids, oldest first, to consider only these
--
-- Answers where to go on (nothing: that was all), and the ids. Looks at a portion at most, unless ids are given.

need({ 'HMGET' })
local q, room = queues[1], tonumber(ARGV[5])
local from = ARGV[6] ~= '' and '(' .. ARGV[6] or '-'
local found, go_on = {}, ''

local ids = {}
if #ARGV > 9 then
  for place = 10, #ARGV do
    if redis.call('ZSCORE', q.dead, ARGV[place]) then
      ids[#ids + 1] = ARGV[place]
    end
  end
else
  ids = redis.call('ZRANGEBYLEX', q.dead, from, '+', 'LIMIT', 0, MOST_LOOKED_AT)
  go_on = ids[MOST_LOOKED_AT] or ''
end

-- One that cannot be read matches no condition, and is purged only when there are none.
local anything = ARGV[7] == '' and ARGV[8] == '' and ARGV[9] == ''
for _, id in ipairs(ids) do
  if #found == room then
    break
  end
  if not is_held(q, id) and (anything or is_meant(q, id, ARGV[7], ARGV[8], ARGV[9]) and read_letter(q, id)) then
    found[#found + 1] = id
  end
end
return { go_on, table.concat(found) }
