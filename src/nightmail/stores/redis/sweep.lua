-- Delete what is no longer needed: old delivered history, old unleased dead letters, expired dedup windows, pauses that
-- are over, and requests to stop messages that are gone.
--
-- KEYS     the queue's tag
-- ARGV[5]  older than this many microseconds
-- ARGV[6]  how many of the delivered; ARGV[7] of the dead letters; ARGV[8] of the windows
-- ARGV[9]  moves from another slot with an id below this one are too old to be repeated: forget them
-- ARGV[10] an empty queue whose last id is below this one is forgotten
--
-- Answers how many of each, and 1 if the queue is forgotten: nothing of it is left but its name on the list.

local q = queues[1]
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[5]))

local function sweep_delivered(room)
  local ids = redis.call('ZRANGEBYSCORE', q.delivered, '-inf', before, 'LIMIT', 0, room)
  for _, id in ipairs(ids) do
    redis.call('UNLINK', q.kept .. id)
  end
  in_parts('ZREM', q.delivered, ids)
  return #ids
end

local function sweep_dead(room)
  local count, passed = 0, 0
  while count < room do
    local id = redis.call('ZRANGEBYSCORE', q.died, '-inf', before, 'LIMIT', passed, 1)[1]
    if not id then
      break
    elseif is_held(q, id) then
      passed = passed + 1
    else
      withdraw_for_good(q, id)
      redis.call('UNLINK', q.letter .. id)
      count = count + 1
    end
  end
  return count
end

local function sweep_windows(room)
  local over = redis.call('ZRANGEBYSCORE', q.windows, '-inf', now, 'LIMIT', 0, room)
  in_parts('ZREM', q.windows, over)
  return #over
end

local function sweep_controls()
  in_parts('HDEL', q.controls, each_pause(q, function() end))
  local stops, over = redis.call('HGETALL', q.stops), {}
  for place = 1, #stops, 2 do
    if redis.call('EXISTS', q.message .. stops[place]) == 0 then
      over[#over + 1] = stops[place]
    end
  end
  in_parts('HDEL', q.stops, over)
end

-- How many entries the queue holds. Its other keys are only of use while it holds any of these.
local function holds()
  local count = redis.call('HLEN', q.timers) + redis.call('HLEN', q.heads) + redis.call('HLEN', q.controls)
  local places = { q.later, q.lines, q.blocked, q.run, q.expired, q.dead, q.delivered, q.windows, q.moved }
  for level = 0, 9 do
    places[#places + 1] = q.due .. level
  end
  for _, place in ipairs(places) do
    count = count + redis.call('ZCARD', place)
  end
  return count
end

local function forget_if_idle()
  if holds() > 0 or (redis.call('GET', q.last) or '') >= ARGV[10] then
    return 0
  end
  redis.call('UNLINK', q.last, q.claims, q.stops, q.waits, q.superseded, q.died, q.dead_due, q.dead_run, q.dead_expired,
    q.letters, q.groups)
  return 1
end

need({ 'ZREMRANGEBYLEX', 'HGETALL', 'EXISTS' })
guard_letters(q)
-- Whatever is read after the first write is also read before it, so that a failure comes before any write.
holds()
redis.call('GET', q.last)
redis.call('HLEN', q.stops)
redis.call('ZREMRANGEBYLEX', q.moved, '-', '(' .. ARGV[9])
local delivered, dead = sweep_delivered(tonumber(ARGV[6])), sweep_dead(tonumber(ARGV[7]))
local windows = sweep_windows(tonumber(ARGV[8]))
sweep_controls()
return { delivered, dead, windows, forget_if_idle() }
