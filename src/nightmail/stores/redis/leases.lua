-- Running messages of a queue, the longest running first.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many
--
-- Answers for each its id, its token, when it was claimed and when its lease ends, and both counters.

local q, limit, held, records = queues[1], tonumber(ARGV[5]), {}, {}
-- Leases are in the order of their ends, so that all are read: no more than this, which is more than workers hold.
local MOST_LOOKED_AT = 10 * MANY
need({ 'HMGET' })

local found = redis.call('ZRANGEBYSCORE', q.run, '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES',
  'LIMIT', 0, MOST_LOOKED_AT)
for place = 1, #found, 2 do
  local id = found[place]
  local of_message = fields(q, id, 'state', 'token')
  local s, token = unpack_state(of_message[1]), of_message[2]
  if s and token and #token == 16 then
    held[#held + 1] = { id = id, token = token, till = tonumber(found[place + 1]), state = s }
  end
end
table.sort(held, function(a, b)
  if a.state.claimed == b.state.claimed then
    return a.id < b.id
  end
  return a.state.claimed < b.state.claimed
end)
for place = 1, math.min(limit, #held) do
  local each = held[place]
  records[place] = each.id .. each.token
    .. struct.pack('>ddI4I4', each.state.claimed, each.till, each.state.attempts, each.state.deliveries)
end
return table.concat(records)
