-- What a claim under a token leased. Takes and extends nothing.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token
--
-- Answers the messages.

need({ 'HMGET' })
local records = {}
for place, q in ipairs(queues) do
  for _, leased in ipairs({ q.run, q.expired }) do
    for _, id in ipairs(redis.call('ZRANGE', leased, 0, -1)) do
      local found = fields(q, id, 'body', 'state', 'headers', 'timer', 'key', 'token')
      if found[6] == ARGV[5] and found[1] and unpack_state(found[2]) then
        records[#records + 1] = record(place, id, found)
      end
    end
  end
end
return table.concat(records)
