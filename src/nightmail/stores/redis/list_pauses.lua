-- The pauses of a queue that are in force.
--
-- KEYS     the queue's tag
--
-- Answers the field and the value of each, see pauses.lua.

local found = {}
each_pause(queues[1], function(field, pause)
  found[#found + 1] = field
  found[#found + 1] = pack_pause(pause)
end)
return found
