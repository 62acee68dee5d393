-- The newest dead letter of a message.
--
-- KEYS     the queue's tag
-- ARGV[5]  the message's id; ARGV[6] begin below this dead letter, or nothing
--
-- Answers where to go on (nothing: that was all), and the dead letter without its body. Looks at a thousand at most.

need({ 'HMGET', 'HGET' })
local q = queues[1]
local from = ARGV[6] ~= '' and '(' .. ARGV[6] or '+'
local ids = redis.call('ZREVRANGEBYLEX', q.dead, from, '-', 'LIMIT', 0, MANY)
for _, id in ipairs(ids) do
  if redis.pcall('HGET', q.letter .. id, 'message') == ARGV[5] then
    local l = read_letter(q, id)
    if l then
      return { '', letter_record(1, id, l, '') }
    end
  end
end
return { ids[MANY] or '', '' }
