-- Take queues off the list, except recently listed ones: a publish may be under way.
--
-- KEYS     the tag of the list
-- ARGV[5]  how many microseconds ago they must have been listed
-- then their names
--
-- Answers how many.

local list, before, count = KEYS[1] .. ':queues', now - tonumber(ARGV[5]), 0
for place = 6, #ARGV do
  local listed = redis.call('ZSCORE', list, ARGV[place])
  if listed and tonumber(listed) < before then
    count = count + redis.call('ZREM', list, ARGV[place])
  end
end
return count
