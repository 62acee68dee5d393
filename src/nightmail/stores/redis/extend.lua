-- Extend leases, never shortening one.
--
-- KEYS     the queues' tags
-- ARGV[5]  the lease in microseconds
-- ARGV[6]  the deliveries, concatenated: the place of the queue, the id, the token
--
-- Answers a byte for each: h for held, s for held and to be stopped, l for lost.

local answers = {}
local till = after(tonumber(ARGV[5]))

local function extend(q, id, token)
  local found = fields(q, id, 'token', 'state', 'key')
  local s = unpack_state(found[2])
  if found[1] ~= token or not s then
    return 'l'
  end
  local before = redis.call('ZSCORE', q.run, id)
  if not before then
    -- The lease has expired, and no other worker has claimed the message.
    leave(q, id, s, found[3] or nil)
    before = 0
  end
  redis.call('ZADD', q.run, math.max(tonumber(before), till), id)
  return q.has_stops and redis.call('HGET', q.stops, id) and 's' or 'h'
end

for _, q in ipairs(queues) do
  guard_lines(q)
  q.has_stops = redis.call('HLEN', q.stops) > 0
end
local from = 1
while from <= #ARGV[6] do
  local place, id, token
  place, id, token, from = struct.unpack('>I2c16c16', ARGV[6], from)
  answers[#answers + 1] = extend(queues[place], id, token)
end
return table.concat(answers)
