-- Hand back the dead letters that the claim under a token leased.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token; ARGV[6] see recalling.lua
--
-- Answers how many, and where to go on. If the claim arrives only after this, because its connection was slower, it
-- takes nothing.

local token, count = ARGV[5], 0

need({ 'ZRANGE', 'ZREMRANGEBYRANK' })
for _, q in ipairs(queues) do
  guard_letters(q)
  redis.call('ZCARD', q.claims)
end
remember_recalled(token)
local cursor = each_of_a_portion({ 'dead_run', 'dead_expired' }, function(q, id)
  local l = read_letter(q, id)
  if l and l.token == token then
    withdraw(q, id)
    hand_letter_back(q, id, l)
    count = count + 1
  end
end)
ring()
return { count, cursor }
