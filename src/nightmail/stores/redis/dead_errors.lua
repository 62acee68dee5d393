-- Dead letters of a queue that match every given condition, counted by reason and fingerprint. For where the groups that
-- are kept do not say enough: see dead_groups.lua.
--
-- KEYS     the queue's tag
-- ARGV[5]  begin below this id, or nothing
-- ARGV[6]  died more than this many microseconds ago, or nothing
-- ARGV[7]  a byte and the reason, or nothing; ARGV[8] a byte and a text that the error contains, or nothing
-- then ids, newest first, to consider only these
--
-- Answers where to go on (nothing: that was all), then for each group: the reason, a byte and the fingerprint (or
-- nothing, if there is no error), how many, when the first and the last of them died, and the highest id.
-- Looks at a portion at most: see letters.lua.

need({ 'HMGET', 'HGET' })
local q = queues[1]

local ids, go_on = {}, ''
if #ARGV > 8 then
  for place = 9, #ARGV do
    local id = ARGV[place]
    if (ARGV[5] == '' or id < ARGV[5]) and redis.call('ZSCORE', q.dead, id) then
      ids[#ids + 1] = id
    end
  end
else
  local from = ARGV[5] ~= '' and '(' .. ARGV[5] or '+'
  ids = redis.call('ZREVRANGEBYLEX', q.dead, from, '-', 'LIMIT', 0, MOST_LOOKED_AT)
  go_on = ids[MOST_LOOKED_AT] or ''
end

-- One that `dead` would not show, because we did not write it, has no state of ours.
local read, by_reason, groups = 0, {}, {}
local function add(id)
  local found = is_id(id) and redis.pcall('HMGET', q.letter .. id, 'state', 'reason', 'error', 'died') or {}
  local state, reason, error = found[1], found[2] or '', found[3]
  if not state or #state ~= STATE_SIZE then
    return
  end
  local died = a_time(tonumber(found[4] or ''))
  local mark = error and '!' .. fingerprint(error) or ''
  by_reason[reason] = by_reason[reason] or {}
  local group = by_reason[reason][mark]
  if not group then
    group = { reason = reason, error = mark, count = 0, first = died, last = died, newest = id }
    by_reason[reason][mark] = group
    groups[#groups + 1] = group
  end
  group.count = group.count + 1
  group.first = math.min(group.first, died)
  group.last = math.max(group.last, died)
end

for place, id in ipairs(ids) do
  if is_meant(q, id, ARGV[6], ARGV[7], ARGV[8]) then
    add(id)
    read = read + 1
    if read == MOST_READ then
      go_on = place < #ids and id or go_on
      break
    end
  end
end

local answer = { go_on }
for _, group in ipairs(groups) do
  for _, each in ipairs({
    group.reason, group.error, group.count, string.format('%.0f', group.first), string.format('%.0f', group.last),
    group.newest,
  }) do
    answer[#answer + 1] = each
  end
end
return answer
