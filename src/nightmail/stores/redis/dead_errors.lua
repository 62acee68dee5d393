-- Dead letters of a queue that match every given condition, counted by reason and fingerprint.
--
-- KEYS     the queue's tag
-- ARGV[5]  begin below this id, or nothing
-- ARGV[6]  died more than this many microseconds ago, or nothing
-- ARGV[7]  a byte and the reason, or nothing; ARGV[8] a byte and a text that the error contains, or nothing
-- then ids, newest first, to consider only these
--
-- Answers where to go on (nothing: that was all), then for each group: the reason, a byte and the fingerprint (or nothing,
-- if there is no error), how many, when the first and the last of them died, and the highest id.
-- Looks at a thousand at most, unless ids are given.

need({ 'HMGET', 'HGET' })
local q = queues[1]

local ids, go_on = {}, ''
if #ARGV > 8 then
  for place = 9, #ARGV do
    if redis.call('ZSCORE', q.dead, ARGV[place]) then
      ids[#ids + 1] = ARGV[place]
    end
  end
else
  ids = redis.call('ZREVRANGEBYLEX', q.dead, ARGV[5] ~= '' and '(' .. ARGV[5] or '+', '-', 'LIMIT', 0, MANY)
  go_on = ids[MANY] or ''
end

-- Only what is needed: reading all of a dead letter takes five times as long, and its error twice as long as the
-- fingerprint that was stored with it. One that `dead` would not show, because we did not write it, has no state of ours.
-- Without conditions nothing is made into a dead letter to ask them.
local narrowed = ARGV[6] ~= '' or ARGV[7] ~= '' or ARGV[8] ~= ''
local pcall, letter_key, by_reason, groups = redis.pcall, q.letter, {}, {}
for place = 1, #ids do
  local id = ids[place]
  local found = is_id(id) and pcall('HMGET', letter_key .. id, 'state', 'reason', 'fingerprint', 'died') or {}
  local state, reason, mark = found[1], found[2] or '', found[3]
  if state and #state == STATE_SIZE then
    local died = a_time(tonumber(found[4] or ''))
    local error = (not mark or ARGV[8] ~= '') and pcall('HGET', letter_key .. id, 'error') or nil
    if not narrowed or is_meant({ reason = reason, error = error, died = died }, ARGV[6], ARGV[7], ARGV[8]) then
      -- Letters of earlier versions have none, nor have those that died in a claim.
      mark = mark and '!' .. mark or error and '!' .. fingerprint(error) or ''
      local by_error = by_reason[reason]
      if not by_error then
        by_error = {}
        by_reason[reason] = by_error
      end
      local group = by_error[mark]
      if not group then
        group = { reason = reason, error = mark, count = 0, first = died, last = died, newest = id }
        by_error[mark] = group
        groups[#groups + 1] = group
      end
      group.count = group.count + 1
      if died < group.first then
        group.first = died
      end
      if died > group.last then
        group.last = died
      end
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
