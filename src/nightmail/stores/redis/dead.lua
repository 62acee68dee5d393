-- Dead letters of a queue, newest first, that every given condition applies to.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many; ARGV[6] begin below this id, or nothing
-- ARGV[7]  died more than so many microseconds ago, or nothing
-- ARGV[8]  a byte and the reason, or nothing; ARGV[9] a byte and a text that the error contains, or nothing
-- then ids, if only some are meant
--
-- Answers where to go on (nothing: that was all), and the letters. Looks at a thousand at most.

local q, room = queues[1], tonumber(ARGV[5])
local from = ARGV[6] ~= '' and '(' .. ARGV[6] or '+'
local age, reason, error = tonumber(ARGV[7]), ARGV[8]:sub(2), ARGV[9]:sub(2)
local records, go_on = {}, ''

local wanted
for place = 10, #ARGV do
  wanted = wanted or {}
  wanted[ARGV[place]] = true
end

local function meant(id, found)
  local died = tonumber(found[8] or 0)
  return (not wanted or wanted[id])
    and (not age or died < now - age)
    and (ARGV[8] == '' or found[6] == reason)
    and (ARGV[9] == '' or (found[7] and found[7]:find(error, 1, true) ~= nil))
end

local ids = redis.call('ZREVRANGEBYLEX', q.dead, from, '-', 'LIMIT', 0, MANY)
for place, id in ipairs(ids) do
  if #records == room then
    break
  end
  go_on = place == MANY and id or ''
  local found = redis.pcall('HMGET', q.letter .. id,
    'body', 'state', 'headers', 'timer', 'key', 'reason', 'error', 'died', 'message')
  if not found.err and unpack_state(found[2]) and meant(id, found) then
    found[1] = found[1] or ''
    local why, what = found[6] or '', found[7] and '!' .. found[7] or ''
    records[#records + 1] = record(1, id, found) .. (found[9] or id)
      .. struct.pack('>dI2I4', tonumber(found[8] or 0), #why, #what) .. why .. what
  end
end
return { go_on, table.concat(records) }
