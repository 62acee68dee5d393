-- Extend leases on dead letters, never shortening one.
--
-- KEYS     the queues' tags
-- ARGV[5]  the lease in microseconds
-- ARGV[6]  the deliveries, concatenated: the place of the queue, the id, the token
--
-- Answers a byte for each: h for held, l for lost.

local answers = {}
local till = after(tonumber(ARGV[5]))

local function extend(q, id, token)
  local l = read_letter(q, id)
  if not l or l.token ~= token then
    return 'l'
  end
  local before = tonumber(redis.call('ZSCORE', q.dead_run, id) or 0)
  withdraw(q, id)
  redis.call('ZADD', q.dead_run, math.max(before, till), id)
  return 'h'
end

for _, q in ipairs(queues) do
  guard_letters(q)
end
local from = 1
while from <= #ARGV[6] do
  local place, id, token
  place, id, token, from = struct.unpack('>I2c16c16', ARGV[6], from)
  answers[#answers + 1] = extend(queues[place], id, token)
end
return table.concat(answers)
