-- List queues as published to now.
--
-- KEYS     the tag of the list
-- ARGV[5]  onwards: their names

local list, entries = KEYS[1] .. ':queues', {}
for place = 5, #ARGV do
  entries[#entries + 1] = now
  entries[#entries + 1] = ARGV[place]
end
return in_parts('ZADD', list, entries)
