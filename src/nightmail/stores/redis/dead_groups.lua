-- Groups of dead letters of a queue, as they are kept with the letters.
--
-- KEYS     the queue's tag
-- ARGV[5]  where to go on; 0: from the beginning
-- ARGV[6]  count those that died more than this many microseconds ago, or nothing
-- ARGV[7]  a byte and the reason, or nothing
--
-- Answers where to go on (0: that was all), 1 if not every dead letter is in a group, then for each group: its digest,
-- the reason, a byte and the fingerprint (or nothing, if there is no error), how many, when the first and the last of
-- them died, and the highest id. A group that is there throughout comes once or more often.

local PORTION = 200
need({ 'HSCAN', 'ZCARD', 'ZCOUNT', 'ZRANGE' })
local q = queues[1]
local before = ARGV[6] ~= '' and '(' .. string.format('%.0f', now - tonumber(ARGV[6]))
local found = redis.call('HSCAN', q.groups, ARGV[5], 'COUNT', PORTION)
local go_on, groups = found[1], found[2]
local answer, counted = { go_on, 0 }, 0

-- A sorted set's size, or another number about it; 0 for what is none.
local function number_of(...)
  local answered = redis.pcall(...)
  return type(answered) == 'number' and answered or 0
end

for place = 1, #groups, 2 do
  local digest, name = groups[place], groups[place + 1]
  local group, size = q.group .. digest, nil
  local length, rest = name:match('^(%d+):(.*)$')
  if length then
    size = number_of('ZCARD', group)
    counted = counted + size
  end
  local reason, mark = (rest or ''):sub(1, length), (rest or ''):sub((length or 0) + 1)
  if length and (ARGV[7] == '' or reason == ARGV[7]:sub(2)) then
    local count = before and number_of('ZCOUNT', group, '-inf', before) or size
    if count > 0 then
      local first = redis.call('ZRANGE', group, 0, 0, 'WITHSCORES')
      -- Of those that died at one time the highest id comes last: ids follow the order of deaths.
      local last = redis.call('ZRANGE', group, count - 1, count - 1, 'WITHSCORES')
      for _, each in ipairs({ digest, reason, mark, count, first[2], last[2], last[1] }) do
        answer[#answer + 1] = each
      end
    end
  end
end
if ARGV[5] == '0' and go_on == '0' and counted ~= redis.call('ZCARD', q.dead) then
  answer[2] = 1
end
return answer
