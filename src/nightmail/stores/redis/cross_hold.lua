-- The first step of moving dead letters to a queue in another slot: hold them, so that nothing else can claim, move
-- or delete them, and record on each where it is going and under which id.
--
-- KEYS     the queues' tags
-- ARGV[5]  the lease in microseconds; ARGV[6] the token; ARGV[7] the name of the queue they go to
-- then for each dead letter: the place of its queue, its id, an id for the move
--
-- Answers for each the id of the move and the dead letter, or nothing if it is gone or held. One that an earlier move
-- to the same queue left unfinished keeps the id of that move.

local lease, token, target = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local answers = {}

local function hold(place, id, move)
  local q = queues[place]
  local l = redis.call('ZSCORE', q.dead, id) and not is_held(q, id) and read_letter(q, id)
  if not l then
    return ''
  end
  if l.moving and l.moving:sub(17) == target and is_id(l.moving:sub(1, 16)) then
    move = l.moving:sub(1, 16)
  end
  withdraw(q, id)
  redis.call('HSET', q.letter .. id, 'token', token, 'moving', move .. target)
  redis.call('ZADD', q.dead_run, after(lease), id)
  return move .. letter_record(place, id, l, body_of(q, id))
end

for _, q in ipairs(queues) do
  guard_letters(q)
end
for place = 8, #ARGV do
  answers[#answers + 1] = hold(struct.unpack('>I2c16c16', ARGV[place]))
end
return answers
