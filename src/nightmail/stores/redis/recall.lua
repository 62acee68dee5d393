-- Hand back what the claim under a token leased: each message has the place and counters that it had before.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token; ARGV[6] see recalling.lua
--
-- Answers how many, and where to go on. If the claim arrives only after this, because its connection was slower, it
-- takes nothing.

local token, count = ARGV[5], 0

need({ 'ZRANGE', 'ZREMRANGEBYRANK' })
for _, q in ipairs(queues) do
  guard_lines(q)
  redis.call('ZCARD', q.claims)
end
remember_recalled(token)
local cursor = each_of_a_portion({ 'run', 'expired' }, function(q, id)
  local found = fields(q, id, 'token', 'state', 'key')
  if found[1] ~= token then
    return
  end
  local s, key = unpack_state(found[2]), found[3] or nil
  if s then
    leave(q, id, s, key)
    hand_back(q, id, s, key)
    count = count + 1
  else
    bury_unreadable(q, id)
  end
end)
ring()
return { count, cursor }
