-- Lease dead letters of these queues, longest due first.
--
-- KEYS     the queues' tags
-- ARGV[5]  how many; ARGV[6] the lease in microseconds; ARGV[7] the token
-- ARGV[8]  how many bytes of bodies and headers; ARGV[9] 1: the first dead letter always fits
-- ARGV[10] the largest body that is read; ARGV[11] the largest headers. What is larger is given up.
--
-- Answers the microseconds until the next dead letter is due or the next lease ends (nothing: never), the dead letters,
-- and 1 if there may be more. A token that was recalled takes nothing.

local limit, lease, token = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
bytes_left, nothing_read = tonumber(ARGV[8]), ARGV[9] == '1'
local largest, largest_headers = tonumber(ARGV[10]), tonumber(ARGV[11])
local records = {}
local full = false

-- Expired leases: their dead letters are offered again, unless they were given up.
local function take_back(q)
  local ended = redis.call('ZRANGEBYSCORE', q.dead_run, '-inf', now, 'WITHSCORES', 'LIMIT', 0, MANY)
  for place = 1, #ended, 2 do
    local id = ended[place]
    local l = read_letter(q, id)
    redis.call('ZREM', q.dead_run, id)
    if l and l.lease.due > 0 then
      redis.call('ZADD', q.dead_expired, ended[place + 1], id)
      redis.call('ZADD', q.dead_due, l.lease.due, id)
    end
  end
  -- One portion per call: the next call does the rest.
  full = full or #ended == 2 * MANY
end

-- The longest due of all queues, up to the limit.
local function choose(room)
  local candidates = {}
  for place, q in ipairs(queues) do
    local found = redis.call('ZRANGEBYSCORE', q.dead_due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, room)
    for at = 1, #found, 2 do
      candidates[#candidates + 1] = { id = found[at], due = tonumber(found[at + 1]), place = place }
    end
  end
  table.sort(candidates, function(a, b)
    if a.due == b.due then
      return a.id < b.id
    end
    return a.due < b.due
  end)
  for place = #candidates, room + 1, -1 do
    candidates[place] = nil
  end
  return candidates
end

local stopped = false

local function take(candidate)
  local id, q = candidate.id, queues[candidate.place]
  local l = read_letter(q, id)
  if not l then
    withdraw(q, id)
    return -- Other software has changed it: there is nothing to deliver.
  end
  local body = body_of(q, id)
  if #body > largest or #(l.found[3] or '') > largest_headers then
    withdraw(q, id)
    give_up(q, id, l)
    return
  end
  if not fits(l, body) then
    full, stopped = true, true
    return
  end
  withdraw(q, id)
  l.lease.claimed = now
  l.lease.deliveries = one_more(l.lease.deliveries)
  redis.call('HSET', q.letter .. id, 'lease', pack_lease(l.lease), 'token', token)
  redis.call('ZADD', q.dead_run, after(lease), id)
  records[#records + 1] = letter_record(candidate.place, id, l, body)
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge)
end

for _, q in ipairs(queues) do
  guard_letters(q)
  redis.call('ZCARD', q.claims)
end
for _, q in ipairs(queues) do
  if redis.call('ZSCORE', q.claims, token) then
    return { '', '', 0 }
  end
end

for _, q in ipairs(queues) do
  take_back(q)
end
repeat
  local chosen = choose(limit - #records)
  for _, candidate in ipairs(chosen) do
    if not stopped then
      take(candidate)
    end
  end
until stopped or #chosen == 0 or #records == limit
full = full or #records == limit

local following = math.huge
for _, q in ipairs(queues) do
  following = math.min(following, first_score(q.dead_run), first_score(q.dead_due))
end
local wait = following < math.huge and string.format('%.0f', math.max(following - now, 0)) or ''
return { full and '' or wait, table.concat(records), full and 1 or 0 }
