-- Delete dead letters, except leased ones.
--
-- KEYS     the queue's tag
-- ARGV[5]  their ids, concatenated
--
-- Answers how many.

local q, count = queues[1], 0
guard_letters(q)
for from = 1, #ARGV[5], 16 do
  local id = ARGV[5]:sub(from, from + 15)
  if redis.call('ZSCORE', q.dead, id) and not is_held(q, id) then
    withdraw_for_good(q, id)
    redis.call('UNLINK', q.letter .. id)
    count = count + 1
  end
end
return count
