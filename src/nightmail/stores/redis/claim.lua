-- Lease available messages of these queues, queue by queue, until there are enough.
--
-- KEYS     the queues' tags, in the order in which they are served
-- ARGV[5]  how many; ARGV[6] the lease in microseconds; ARGV[7] the token
-- ARGV[8]  how many bytes of bodies and headers
-- ARGV[9]  1: nothing was taken before, so that the first message always fits, and a queue may be probed
-- ARGV[10] the largest body that is read; ARGV[11] the largest headers
-- then for each queue which of its next messages is the oldest, whatever its priority: 1 to 8
--
-- Answers the microseconds until the next message is due, or the next lease or pause ends (nothing: never); the
-- messages; and a number: 1 if there may be more; 2 if the only message is a probe; 3 if nothing was taken because a
-- queue is to be probed, and a probe must come alone. A token that was recalled takes nothing.

local ONE_IN = 8
local limit, lease, token = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local MORE, PROBE, PROBE_FIRST = 1, 2, 3
local bytes_left, first_fits = tonumber(ARGV[8]), ARGV[9] == '1'
local may_probe = first_fits
local largest, largest_headers = tonumber(ARGV[10]), tonumber(ARGV[11])
local CONTENT = { 'body', 'state', 'headers', 'timer', 'key' }

local records = {}

-- How many messages this call may still move on their way to being claimed, for all queues together: the server serves
-- no other client meanwhile. The next call does the rest.
local budget = MANY
-- The same for the ordering keys about to be claimed, so that they need not wait for all others to line up.
local on_demand = MANY
local more = false
-- When it is worth looking again: here the ends of pauses, at the end all the rest.
local following = math.huge

-- Find out what is paused in a queue, and remove what no longer is: sets q.closed, q.probe and q.paused_keys.
local function heed_pauses(q)
  local person, automatic
  local over = each_pause(q, function(field, pause)
    if pause.till > now then
      following = math.min(following, pause.till)
    end
    if field == PERSON then
      person = pause
    elseif field == AUTOMATIC then
      automatic = pause
    elseif field:sub(1, 1) == KEY then
      table.insert(q.paused_keys, field:sub(2))
      q.is_paused[field:sub(2)] = true
    end
  end)
  in_parts('HDEL', q.controls, over)
  q.closed = person or automatic and (automatic.till == 0 or automatic.till > now)
  q.probe = not q.closed and automatic
end

-- Do not take this message in this call.
local function pass_over(q, id)
  q.passed[id], q.held_back = true, q.held_back + 1
end

-- The heads of paused keys are known beforehand, so that a claim does not come upon them one after the other.
local function pass_over_paused(q)
  for first = 1, #q.paused_keys, MANY do
    local last = math.min(first + MANY - 1, #q.paused_keys)
    for _, head in ipairs(redis.call('HMGET', q.heads, unpack(q.paused_keys, first, last))) do
      if head then
        pass_over(q, head)
      end
    end
  end
end

-- Expired leases: their messages are available again, ordered by their due times.
local function take_back(q)
  local ended = redis.call('ZRANGEBYSCORE', q.run, '-inf', now, 'WITHSCORES', 'LIMIT', 0, budget + 1)
  q.grown = q.grown or #ended > 0
  for place = 1, #ended, 2 do
    if budget == 0 then
      more = true
      return
    end
    budget = budget - 1
    local id = ended[place]
    local s = state_of(q, id)
    if s then
      redis.call('ZREM', q.run, id)
      redis.call('ZADD', q.expired, ended[place + 1], id)
      redis.call('ZADD', q.due .. s.priority, s.due, id)
    else
      bury_unreadable(q, id)
    end
  end
end

-- A message with an ordering key has become due: put it in line.
local function line_up_one(q, id)
  local found = fields(q, id, 'state', 'key')
  local s = unpack_state(found[1])
  redis.call('ZREM', q.later, id)
  if s and found[2] then
    redis.call('ZREM', q.waits, wait_of(id, s, found[2]))
    enter(q, id, s, found[2])
  else
    bury_unreadable(q, id)
  end
  q.grown = true
end

local function line_up(q)
  local due = redis.call('ZRANGEBYSCORE', q.later, '-inf', now, 'LIMIT', 0, budget + 1)
  for _, id in ipairs(due) do
    if budget == 0 then
      more, q.unlined = true, true
      return
    end
    budget = budget - 1
    line_up_one(q, id)
  end
end

-- Whether all due messages of a key are in its line, so that its head is the first of them. If not, line them up now.
local function lined_up(q, key)
  if not q.unlined then
    return true
  end
  local from, to = '[' .. key .. '\0', '(' .. key .. '\0' .. string.format('%016x', now) .. 'g'
  for _, wait in ipairs(redis.call('ZRANGEBYLEX', q.waits, from, to, 'LIMIT', 0, on_demand + 1)) do
    if on_demand == 0 then
      return false
    end
    on_demand = on_demand - 1
    local id = wait:sub(-16)
    if redis.call('ZSCORE', q.later, id) then
      line_up_one(q, id)
    end
    redis.call('ZREM', q.waits, wait)
  end
  return true
end

local function older(a, b)
  if a.due == b.due then
    return a.id < b.id
  end
  return a.due < b.due
end

-- The levels that may hold messages, highest priority first. One that was empty and has not grown needs no read.
local function levels_of(q)
  local levels = {}
  for level = 9, 0, -1 do
    if q.sizes[level] > 0 or q.grown then
      levels[#levels + 1] = level
    end
  end
  return levels
end

-- The first `count` due messages of a level.
local function first_of(q, level, count)
  -- Enough even without those that cannot be taken now.
  local found = redis.call('ZRANGEBYSCORE', q.due .. level, '-inf', now, 'WITHSCORES', 'LIMIT', 0, count + q.held_back)
  local list = {}
  for place = 1, #found, 2 do
    if #list < count and not q.passed[found[place]] then
      list[#list + 1] = { id = found[place], due = tonumber(found[place + 1]), level = level }
    end
  end
  return list
end

-- The same where no other level is compared: its due times are not read.
local function first_of_only(q, level, count)
  local list, size = {}, 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.due .. level, '-inf', now, 'LIMIT', 0, count + q.held_back)) do
    if size < count and not q.passed[id] then
      size = size + 1
      list[size] = { id = id, level = level }
    end
  end
  return list
end

-- What to take: the oldest of all levels for their share, the rest by priority. The oldest are interleaved, so that the
-- shares are right wherever the bytes run out.
local function choose(q, room, share, until_oldest)
  local levels = levels_of(q)
  if #levels == 1 then
    -- The oldest are also the first by priority.
    return first_of_only(q, levels[1], room)
  end
  local oldest, others, taken = {}, {}, {}
  if share > 0 then
    for _, level in ipairs(levels) do
      for _, candidate in ipairs(first_of(q, level, share)) do
        oldest[#oldest + 1] = candidate
      end
    end
    table.sort(oldest, older)
    for place = #oldest, share + 1, -1 do
      oldest[place] = nil
    end
    for _, candidate in ipairs(oldest) do
      taken[candidate.id] = true
    end
  end
  local rest = room - #oldest
  for _, level in ipairs(levels) do
    if #others == rest then
      break
    end
    -- Enough even if all of the oldest are of this level.
    for _, candidate in ipairs(first_of(q, level, room)) do
      if #others < rest and not taken[candidate.id] then
        others[#others + 1] = candidate
      end
    end
  end
  local chosen, next_oldest, next_other = {}, 1, 1
  for place = 1, #oldest + #others do
    local turn = (place - until_oldest) % ONE_IN == 0
    if oldest[next_oldest] and (turn or not others[next_other]) then
      chosen[place], next_oldest = oldest[next_oldest], next_oldest + 1
    else
      chosen[place], next_other = others[next_other], next_other + 1
    end
  end
  return chosen
end

-- Whether this may be taken: the head of a line only once all due messages are in the line.
local function may_be_taken(q, id, s, key)
  if not key then
    return true
  elseif q.is_paused[key] or s.started == 0 and not lined_up(q, key) then
    pass_over(q, id)
    return false
  elseif s.started == 1 then
    return true
  end
  -- One with a lower id may have become the head.
  return not q.unlined or redis.call('HGET', q.heads, key) == id
end

-- Move a message to the dead letters because of its size. It was never delivered, so no attempt is counted.
local function bury_too_large(q, id, s, found)
  local key = found[5] or nil
  leave(q, id, s, key)
  redis.call('ZREM', q.superseded, id)
  local error = #found[1] > largest
    and string.format('the body has %d bytes, and at most %d are read', #found[1], largest)
    or string.format('the headers have %d bytes, and at most %d are read', #found[3], largest_headers)
  local new, group = new_letter(q, id, 'too_large', (error:gsub('%d+', '#')), true)
  local into = q.letter .. new
  redis.call('RENAME', q.message .. id, into)
  redis.call('HDEL', into, 'token', 'last_error')
  redis.call('HSET', into, 'message', id, 'reason', 'too_large', 'error', error, 'group', group,
    'died', string.format('%.0f', now), 'lease', GIVEN_UP)
  release_timer(q, id, found[4] or nil)
  free(q, id, key)
end

local full = false

-- Whether a message of this size still fits; once one does not, none does.
local function fits(found)
  local size = #found[1] + #(found[3] or '')
  if size > bytes_left and not first_fits then
    full = true
    return false
  end
  bytes_left, first_fits = bytes_left - size, false
  return true
end

-- Lease what was chosen; returns how many could be.
local function take(q, place, chosen)
  local count = 0
  local leases, by_level, ids = {}, {}, {}
  local till = after(lease)
  for _, candidate in ipairs(chosen) do
    local id = candidate.id
    local found = fields(q, id, unpack(CONTENT))
    local s = found[1] and unpack_state(found[2])
    local key = found[5] or nil
    if not s then
      bury_unreadable(q, id)
    elseif #found[1] > largest or #(found[3] or '') > largest_headers then
      bury_too_large(q, id, s, found)
    elseif may_be_taken(q, id, s, key) then
      if not fits(found) then
        break
      end
      s.claimed = now
      s.deliveries = one_more(s.deliveries)
      s.started = key and 1 or 0
      s.superseded = superseded(q, id)
      found[2] = pack_state(s)
      redis.call('HSET', q.message .. id, 'state', found[2], 'token', token)
      records[#records + 1] = record(place, id, found)
      leases[#leases + 1] = till
      leases[#leases + 1] = id
      by_level[candidate.level] = by_level[candidate.level] or {}
      table.insert(by_level[candidate.level], id)
      ids[#ids + 1] = id
      count = count + 1
    end
  end
  for level, list in pairs(by_level) do
    in_parts('ZREM', q.due .. level, list)
  end
  in_parts('ZADD', q.run, leases)
  if redis.call('ZCARD', q.expired) > 0 then
    in_parts('ZREM', q.expired, ids)
  end
  return count
end

local function make_ready(q)
  q.passed, q.held_back = {}, 0
  take_back(q)
  line_up(q)
  pass_over_paused(q)
end

local function claim(q, place, room)
  local until_oldest = tonumber(ARGV[11 + place])
  local count, missed = 0, 0
  make_ready(q)
  while count < room do
    local next_oldest = (until_oldest - count - 1) % ONE_IN + 1
    local share = room - count >= next_oldest and 1 + math.floor((room - count - next_oldest) / ONE_IN) or 0
    local chosen = choose(q, room - count, share, next_oldest)
    local got = take(q, place, chosen)
    count = count + got
    if got == #chosen or full then
      break
    end
    -- Some were moved to the dead letters, or must wait for another of their key: take others instead.
    missed = missed + #chosen - got
    q.grown = true
    if missed > MANY then
      more = true
      break
    end
  end
  return count
end

-- Take one message of a queue that is paused automatically; returns whether there was one.
local function probe(q, place)
  if claim(q, place, 1) == 0 then
    return false
  end
  q.probe.till = after(q.probe.length)
  redis.call('HSET', q.controls, AUTOMATIC, pack_pause(q.probe))
  return true
end

-- Whether there is something to probe a queue with.
local function could_be_probed(q)
  make_ready(q)
  return #choose(q, 1, 0, 1) > 0
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge)
end

-- When the first message of a level is due that was not passed over.
local function first_due(q, level)
  local found = redis.call('ZRANGE', q.due .. level, 0, q.held_back, 'WITHSCORES')
  for place = 1, #found, 2 do
    if not q.passed[found[place]] then
      return tonumber(found[place + 1])
    end
  end
  return math.huge
end

need({ 'ZRANGEBYSCORE', 'ZRANGE' })
for _, q in ipairs(queues) do
  guard_lines(q)
  q.paused_keys, q.is_paused = {}, {}
  q.controlled = redis.call('HLEN', q.controls) > 0
end
for _, q in ipairs(queues) do
  if redis.call('ZSCORE', q.claims, token) then
    return { '', '', 0 }
  end
end

for _, q in ipairs(queues) do
  if q.controlled then
    heed_pauses(q)
  end
end
for place, q in ipairs(queues) do
  if q.probe then
    if not may_probe then
      if could_be_probed(q) then
        ring()
        return { '', '', PROBE_FIRST }
      end
    elseif probe(q, place) then
      ring()
      return { '', table.concat(records), PROBE }
    end
  end
end

local left = limit
for place, q in ipairs(queues) do
  if left > 0 and not full and not q.closed and not q.probe then
    left = left - claim(q, place, left)
  end
end
ring()

full = full or left == 0 or more
if not full then
  for _, q in ipairs(queues) do
    if not q.closed then
      following = math.min(following, first_score(q.run), first_score(q.later))
      for level = 0, 9 do
        if q.sizes[level] > 0 or q.grown then
          following = math.min(following, first_due(q, level))
        end
      end
    end
  end
end
local wait = following < math.huge and string.format('%.0f', math.max(following - now, 0)) or ''
return { wait, table.concat(records), full and MORE or 0 }
