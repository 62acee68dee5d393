-- Hand back the dead letters that the claim under a token leased.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token
--
-- Answers how many. If the claim arrives only after this, because its connection was slower, it takes nothing.

local REMEMBERED = 1000
local token, count = ARGV[5], 0

need({ 'ZREMRANGEBYRANK' })
for _, q in ipairs(queues) do
  guard_letters(q)
  redis.call('ZCARD', q.claims)
end
for _, q in ipairs(queues) do
  for _, leased in ipairs({ q.dead_run, q.dead_expired }) do
    for _, id in ipairs(redis.call('ZRANGE', leased, 0, -1)) do
      local l = read_letter(q, id)
      if l and l.token == token then
        withdraw(q, id)
        hand_letter_back(q, id, l)
        count = count + 1
      end
    end
  end
  redis.call('ZADD', q.claims, now, token)
  redis.call('ZREMRANGEBYRANK', q.claims, 0, -REMEMBERED - 1)
end
ring()
return count
