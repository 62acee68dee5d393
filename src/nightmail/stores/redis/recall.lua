-- Hand back what the claim under a token leased: each message has the place and counters that it had before.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token
--
-- Answers how many. If the claim arrives only after this, because its connection was slower, it takes nothing.

local REMEMBERED = 1000
local token, count = ARGV[5], 0

need({ 'ZRANGE', 'ZREMRANGEBYRANK' })
for _, q in ipairs(queues) do
  guard_lines(q)
  redis.call('ZCARD', q.claims)
end
for _, q in ipairs(queues) do
  for _, leased in ipairs({ q.run, q.expired }) do
    for _, id in ipairs(redis.call('ZRANGE', leased, 0, -1)) do
      if fields(q, id, 'token')[1] == token then
        local found = fields(q, id, 'state', 'key')
        local s, key = unpack_state(found[1]), found[2] or nil
        if s then
          leave(q, id, s, key)
          hand_back(q, id, s, key)
          count = count + 1
        else
          bury_unreadable(q, id)
        end
      end
    end
  end
  redis.call('ZADD', q.claims, now, token)
  redis.call('ZREMRANGEBYRANK', q.claims, 0, -REMEMBERED - 1)
end
ring()
return count
