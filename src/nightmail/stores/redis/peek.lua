-- Waiting messages of a queue by due time, without superseded ones.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many; ARGV[6] only those due before this moment, or nothing; ARGV[7] only the owner of this timer id
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

local function due_early(due)
  return ARGV[6] == '' or due < tonumber(ARGV[6])
end

q.replaced = redis.call('ZCARD', q.superseded)
if timer ~= '' then
  local id = redis.call('HGET', q.timers, timer)
  local s = id and not running(q, id) and state_of(q, id)
  if s and due_early(s.due) then
    add({ id, s.due })
  end
else
  -- Enough even without the superseded ones.
  local count = room + q.replaced
  local places = { q.later, q.blocked }
  for level = 0, 9 do
    places[#places + 1] = q.due .. level
  end
  for _, place in ipairs(places) do
    add(redis.call('ZRANGEBYSCORE', place, '-inf', before, 'WITHSCORES', 'LIMIT', 0, count))
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.run, '-inf', now)) do
    local s = state_of(q, id)
    if s and due_early(s.due) then
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
