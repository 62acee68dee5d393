-- Write how looking after dead letters ended. Each is fenced by its id and its token, and by nothing else.
--
-- KEYS     the queues' tags
-- ARGV[5]  the settlements, one after the other: the place of the queue, how it ended, a delay, the id, the token
--
-- Answers a letter for each: h for held, l for lost.

local SETTLEMENT = '>I2Bdc16c16'
local DONE, RETRY, POSTPONE, DEAD = 0, 1, 2, 4 -- And 3 is released, and 5 is dead, too.

local answers = {}

local function give_up(q, id, l)
  l.care.due, l.care.claimed = 0, 0
  redis.call('HSET', q.letter .. id, 'care', pack_care(l.care), 'token', '')
end

local function bring_back(q, id, l, kind, delay)
  local care = l.care
  if kind == RETRY then
    care.attempts, care.deliveries = one_more(care.attempts), 0
  elseif kind == POSTPONE then
    care.attempts, care.deliveries = 0, 0
  else
    care.deliveries = math.max(care.deliveries - 1, 0)
  end
  care.claimed = 0
  care.due = after(delay)
  redis.call('HSET', q.letter .. id, 'care', pack_care(care), 'token', '')
  redis.call('ZADD', q.offered, care.due, id)
  ring_if_soon(q, care.due)
end

local function settle(q, kind, delay, id, token)
  local l = read_letter(q, id)
  if not l or l.token ~= token then
    return 'l'
  end
  if kind == DONE then
    withdraw_for_good(q, id)
    redis.call('UNLINK', q.letter .. id)
    return 'h'
  end
  withdraw(q, id)
  if kind >= DEAD then
    give_up(q, id, l)
  else
    bring_back(q, id, l, kind, delay)
  end
  return 'h'
end

for _, q in ipairs(queues) do
  guard_letters(q)
end
local from = 1
while from <= #ARGV[5] do
  local place, kind, delay, id, token
  place, kind, delay, id, token, from = struct.unpack(SETTLEMENT, ARGV[5], from)
  answers[#answers + 1] = settle(queues[place], kind, delay, id, token)
end
ring()
return table.concat(answers)
