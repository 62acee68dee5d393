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

need({ 'HMGET' })
local q = queues[1]
local CHARACTERS = 200

-- As in records.py: the first characters of the first line, with '#' for each word that has a digit in it.
local function fingerprint(error)
  local line = error:match('^[^\n]*')
  if #line > CHARACTERS then
    local seen = 0
    for place in line:gmatch('()[^\128-\191]') do
      seen = seen + 1
      if seen > CHARACTERS then
        line = line:sub(1, place - 1)
        break
      end
    end
  end
  -- %f: only where a word begins.
  return (line:gsub('%f[%w_%-][%a_%-]*%d[%w_%-]*', '#'))
end

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

-- Only what is needed: reading all of a dead letter takes five times as long. One that `dead` would not show, because
-- we did not write it, has no state of ours. Without conditions nothing is made into a dead letter to ask them.
local narrowed = ARGV[6] ~= '' or ARGV[7] ~= '' or ARGV[8] ~= ''
local pcall, letter_key, marks, by_reason, groups = redis.pcall, q.letter, {}, {}, {}
for place = 1, #ids do
  local id = ids[place]
  local found = is_id(id) and pcall('HMGET', letter_key .. id, 'state', 'reason', 'error', 'died') or {}
  local state, reason, error = found[1], found[2] or '', found[3] or false
  if state and #state == STATE_SIZE then
    local died = a_time(tonumber(found[4] or ''))
    if not narrowed or is_meant({ reason = reason, error = error or nil, died = died }, ARGV[6], ARGV[7], ARGV[8]) then
      local mark = marks[error]
      if not mark then
        mark = error and '!' .. fingerprint(error) or ''
        marks[error] = mark
      end
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
