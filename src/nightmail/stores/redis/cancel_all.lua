-- Remove up to a number of waiting messages of a queue, and their dedup windows; none that was published since.
--
-- KEYS     the queue's tag
-- ARGV[5]  how many; ARGV[6] the highest id to remove, or nothing: all that exist now
--
-- Answers how many were removed, and the highest id to remove.

local q, room = queues[1], tonumber(ARGV[5])
need({ 'ZRANGE', 'ZRANGEBYSCORE' })
guard_lines(q)
redis.call('ZCARD', q.windows)
local highest = ARGV[6] ~= '' and ARGV[6] or last_id(q) or HIGHEST
local removed = 0

local function remove(id)
  local found = fields(q, id, 'state', 'key', 'timer')
  local s = unpack_state(found[1])
  if not s then
    bury_unreadable(q, id)
    return
  end
  local key = found[2] or nil
  leave(q, id, s, key)
  if owns(q, id, found[3]) then
    redis.call('HDEL', q.timers, found[3])
    redis.call('ZREM', q.windows, found[3])
  end
  redis.call('ZREM', q.superseded, id)
  redis.call('UNLINK', q.message .. id)
  free(q, id, key)
  removed = removed + 1
end

-- Remove those behind a head first: removing the head first would offer each of them in turn.
local places = { q.blocked, q.later }
for level = 0, 9 do
  places[#places + 1] = q.due .. level
end
for _, place in ipairs(places) do
  local passed = 0
  while removed < room do
    local part = redis.call('ZRANGE', place, passed, passed + math.min(room - removed, MANY) - 1)
    if #part == 0 then
      break
    end
    for _, id in ipairs(part) do
      if id <= highest then
        remove(id)
      else
        passed = passed + 1
      end
    end
  end
end
while removed < room do
  local part = redis.call('ZRANGEBYSCORE', q.run, '-inf', now, 'LIMIT', 0, math.min(room - removed, MANY))
  if #part == 0 then
    break
  end
  for _, id in ipairs(part) do
    remove(id)
  end
end
ring()
return { removed, highest }
