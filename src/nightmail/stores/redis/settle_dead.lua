-- Write the outcomes of dead letter deliveries. Each is fenced by its id and its token, and by nothing else.
--
-- KEYS     the queues' tags
-- ARGV[5]  the settlements, concatenated: the place of the queue, how it ended, a delay, the id, the token
--
-- Answers a byte for each: h for held, l for lost.

local SETTLEMENT = '>I2Bdc16c16'
local DONE, RETRY, RELEASE, DEAD = 0, 1, 3, 4 -- 2 is postponed, and 5 is dead, too.

local answers = {}

local function try_later(q, id, l, kind, delay)
  local lease = l.lease
  lease.attempts, lease.deliveries = kind == RETRY and one_more(lease.attempts) or 0, 0
  lease.due = after(delay)
  offer_again(q, id, l)
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
  elseif kind == RELEASE then
    hand_letter_back(q, id, l)
  else
    try_later(q, id, l, kind, delay)
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
