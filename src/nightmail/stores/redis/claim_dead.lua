-- Lease dead letters of these queues, the longest due of all first.
--
-- KEYS     the queues' tags
-- ARGV[5]  how many; ARGV[6] the lease in microseconds; ARGV[7] the token
--
-- Answers the microseconds until the next letter may be taken or the next lease ends (nothing: never), and the letters.
-- A token that was used before takes nothing: it answers what it took.

local limit, lease, token = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local REMEMBERED = 1000
local records = {}

-- Leases that ended: their letters are offered again, unless they were given up before.
local function take_back(q)
  repeat
    local ended = redis.call('ZRANGEBYSCORE', q.held, '-inf', now, 'WITHSCORES', 'LIMIT', 0, MANY)
    for place = 1, #ended, 2 do
      local id = ended[place]
      local l = read_letter(q, id)
      redis.call('ZREM', q.held, id)
      if l and l.care.due > 0 then
        redis.call('ZADD', q.lapsed, ended[place + 1], id)
        redis.call('ZADD', q.offered, l.care.due, id)
      end
    end
  until #ended < 2 * MANY
end

-- The first so many of all queues.
local function choose(room)
  local candidates = {}
  for place, q in ipairs(queues) do
    local found = redis.call('ZRANGEBYSCORE', q.offered, '-inf', now, 'WITHSCORES', 'LIMIT', 0, room)
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

local function take(candidate)
  local id, q = candidate.id, queues[candidate.place]
  local l = read_letter(q, id)
  withdraw(q, id)
  if not l then
    return -- Somebody has tampered with it: there is nothing to look after.
  end
  l.care.claimed = now
  l.care.deliveries = one_more(l.care.deliveries)
  redis.call('HSET', q.letter .. id, 'care', pack_care(l.care), 'token', token)
  redis.call('ZADD', q.held, after(lease), id)
  records[#records + 1] = letter_record(candidate.place, id, l)
  q.claimed = true
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge)
end

need({ 'ZREMRANGEBYRANK' })
for _, q in ipairs(queues) do
  guard_letters(q)
  redis.call('ZCARD', q.claims)
end
for _, q in ipairs(queues) do
  if redis.call('ZSCORE', q.claims, token) then
    return { '', leased_under(token) }
  end
end

for _, q in ipairs(queues) do
  take_back(q)
end
repeat
  local chosen = choose(limit - #records)
  for _, candidate in ipairs(chosen) do
    take(candidate)
  end
until #chosen == 0 or #records == limit

local following = math.huge
for _, q in ipairs(queues) do
  if q.claimed then
    redis.call('ZADD', q.claims, now, token)
    redis.call('ZREMRANGEBYRANK', q.claims, 0, -REMEMBERED - 1)
  end
  following = math.min(following, first_score(q.held), first_score(q.offered))
end
local wait = following < math.huge and string.format('%.0f', math.max(following - now, 0)) or ''
return { wait, table.concat(records) }
