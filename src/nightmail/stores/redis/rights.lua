-- Which commands the account may not use. Writes nothing.
--
-- KEYS     a tag
-- then the commands
--
-- Answers them, and PUBLISH or SPUBLISH if it may not send wake-ups.

local lacking = {}
for place = 5, #ARGV do
  if is_forbidden(ARGV[place]) then
    lacking[#lacking + 1] = ARGV[place]
  end
end
local rung = redis.pcall(ARGV[2], queues[1].bell, '')
if type(rung) == 'table' and rung.err then
  lacking[#lacking + 1] = ARGV[2]
end
return lacking
