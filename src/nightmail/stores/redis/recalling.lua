-- What recalls share: they look at every lease of their queues, a portion in each call, so that no call runs long.
-- There is no index by token: each claim would have to write it.
--
-- ARGV[6]  where to go on, as the call before answered it; nothing: from the beginning
--
-- The first call records the token, so nothing is leased under it from then on. What it leased before can move only from
-- a queue's running leases to its expired ones, which come second: nothing moves to where a recall has already been.

local REMEMBERED = 1000
local CURSOR = '>I2Bd'

-- The rank of the first lease after this one, which may be gone.
local function rank_after(leases, till, id)
  local low, high = 0, redis.call('ZCARD', leases)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', leases, middle, middle, 'WITHSCORES')
    local its_till = tonumber(found[2])
    if its_till < till or (its_till == till and found[1] <= id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Call `look_at` with the queue and the id of each lease of a portion; returns where to go on, or nothing at the end.
-- `names` are those of the keys of running and of expired leases.
local function each_of_a_portion(names, look_at)
  local place, which, till, id, room = 1, 1, nil, nil, MANY
  if ARGV[6] ~= '' then
    local from
    place, which, till, from = struct.unpack(CURSOR, ARGV[6])
    id = ARGV[6]:sub(from)
  end
  while place <= #queues do
    local leases = queues[place][names[which]]
    local first = id and rank_after(leases, till, id) or 0
    local found = redis.call('ZRANGE', leases, first, first + room - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      look_at(queues[place], found[at])
    end
    room = room - #found / 2
    if room == 0 then
      return struct.pack(CURSOR, place, which, tonumber(found[#found])) .. found[#found - 1]
    end
    place, which, id = which == 2 and place + 1 or place, which % 2 + 1, nil
  end
  return ''
end

local function remember_recalled(token)
  for _, q in ipairs(queues) do
    redis.call('ZADD', q.claims, now, token)
    redis.call('ZREMRANGEBYRANK', q.claims, 0, -REMEMBERED - 1)
  end
end
