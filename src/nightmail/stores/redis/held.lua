-- Whether leases hold, asked while the keys of the leased messages are watched.
--
-- KEYS     the queues' tags
-- ARGV[5]  what a message's key has between its tag and its id
-- ARGV[6]  the deliveries, concatenated: the place of the queue, the id, the token
--
-- Answers a byte for each: h for held, l for lost. Fails where settling them would.

local answers = {}
for _, q in ipairs(queues) do
  guard_lines(q)
  for _, key in ipairs({ q.delivered, q.dead_run, q.dead_expired }) do
    redis.call('ZCARD', key)
  end
end
local from = 1
while from <= #ARGV[6] do
  local place, id, token
  place, id, token, from = struct.unpack('>I2c16c16', ARGV[6], from)
  local found = redis.pcall('HGET', KEYS[place] .. ARGV[5] .. id, 'token')
  answers[#answers + 1] = found == token and 'h' or 'l'
end
return table.concat(answers)
