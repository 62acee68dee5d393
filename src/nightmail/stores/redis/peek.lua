-- Waiting messages of a queue by due time, without superseded ones.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many; ARGV[6] only those due before this moment, or nothing; ARGV[7] only the owner of this timer id
-- ARGV[8]  only those after this due time, or nothing; ARGV[9] and after this id, where they are due at that time
--
-- Answers the messages.

need({ 'HMGET' })
local q, room, timer = queues[1], tonumber(ARGV[5]), ARGV[7]
local before = ARGV[6] ~= '' and '(' .. ARGV[6] or '+inf'
local waiting, records = {}, {}

local function add(list)
  for place = 1, #list, 2 do
    waiting[#waiting + 1] = { id = list[place], due = tonumber(list[place + 1]) }
  end
end

local after, after_id = tonumber(ARGV[8]), ARGV[9]

local function wanted(id, due)
  return (ARGV[6] == '' or due < tonumber(ARGV[6]))
    and (not after or due > after or (due == after and id > after_id))
end

q.replaced = redis.call('ZCARD', q.superseded)
if timer ~= '' then
  local id = redis.call('HGET', q.timers, timer)
  local s = id and not running(q, id) and state_of(q, id)
  if s and wanted(id, s.due) then
    add({ id, s.due })
  end
else
  -- Enough even without the superseded ones.
  local count = room + q.replaced
  for _, place in ipairs(places_of(q)) do
    local from, passed = after and ARGV[8] or '-inf', after and ties_up_to(place, ARGV[8], after_id) or 0
    add(redis.call('ZRANGEBYSCORE', place, from, before, 'WITHSCORES', 'LIMIT', passed, count))
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.run, '-inf', now)) do
    local s = state_of(q, id)
    if s and wanted(id, s.due) then
      add({ id, s.due })
    end
  end
end

table.sort(waiting, function(a, b)
  if a.due == b.due then
    return a.id < b.id
  end
  return a.due < b.due
end)
for _, entry in ipairs(waiting) do
  if #records >= room then
    break
  end
  local found = fields(q, entry.id, 'body', 'state', 'headers', 'timer', 'key')
  if found[1] and unpack_state(found[2]) and superseded(q, entry.id) == 0 then
    records[#records + 1] = record(1, entry.id, found)
  end
end
return table.concat(records)
