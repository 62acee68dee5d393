-- The last step of moving dead letters to a queue in another slot: delete those that are stored there, leave the others
-- as they were.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token under which they are held
-- then for each dead letter: the place of its queue, its id, 1 if it is stored
--
-- Answers a byte for each: h for held, l for lost.

local answers = {}

local function finish(place, id, stored)
  local q = queues[place]
  local l = read_letter(q, id)
  if not l or l.token ~= ARGV[5] then
    return 'l'
  end
  if stored == 1 then
    withdraw_for_good(q, id)
    redis.call('UNLINK', q.letter .. id)
    return 'h'
  end
  withdraw(q, id)
  redis.call('HDEL', q.letter .. id, 'token', 'moving')
  if l.lease.due > 0 then
    redis.call('ZADD', q.dead_due, l.lease.due, id)
    ring_if_soon(q, l.lease.due)
  end
  return 'h'
end

for _, q in ipairs(queues) do
  guard_letters(q)
end
for place = 6, #ARGV do
  answers[#answers + 1] = finish(struct.unpack('>I2c16B', ARGV[place]))
end
ring()
return table.concat(answers)
