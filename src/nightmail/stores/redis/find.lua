-- Messages of a queue by id, whatever their state.
--
-- KEYS     the queue's tag
-- ARGV[5]  an id, and so on
--
-- Answers the messages, see stored.lua.

need({ 'HMGET' })
local q, found = queues[1], {}
q.replaced = redis.call('ZCARD', q.superseded)
for place = 5, #ARGV do
  found[#found + 1] = stored_record(q, ARGV[place])
end
return table.concat(found)
