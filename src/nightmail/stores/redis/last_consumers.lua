-- Who consumed each queue last, of those that no longer do.
--
-- KEYS     the tag of the registry
-- ARGV[5]  for how many microseconds that is known
--
-- Answers for each a queue, and what leaving.lua keeps of it.

local consumers, found = KEYS[1] .. ':consumers', {}
need({ 'HGETALL' })

local known = redis.call('HGETALL', consumers)
for place = 1, #known, 2 do
  local seen = known[place + 1]:match('^(%d+) %d+ ')
  if seen and tonumber(seen) >= now - tonumber(ARGV[5]) then
    found[#found + 1] = known[place]
    found[#found + 1] = known[place + 1]
  end
end
return found
