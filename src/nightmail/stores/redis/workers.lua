-- The workers that have reported not long ago.
--
-- KEYS     the tag of the registry
-- ARGV[5]  after how many microseconds a worker is forgotten
--
-- Answers for each its id, when it reported last, and what report.lua keeps of it.

local workers, seen, found = KEYS[1] .. ':workers', KEYS[1] .. ':seen', {}
need({ 'ZRANGEBYSCORE', 'HGET' })

local since = string.format('%.0f', now - tonumber(ARGV[5]))
local ids = redis.call('ZRANGEBYSCORE', seen, since, '+inf', 'WITHSCORES')
for place = 1, #ids, 2 do
  local said = redis.call('HGET', workers, ids[place])
  if said then
    for _, value in ipairs({ ids[place], ids[place + 1], said }) do
      found[#found + 1] = value
    end
  end
end
return found
