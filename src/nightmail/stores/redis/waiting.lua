-- What the scripts share that look through waiting messages by due time.

-- The sorted sets in which they are, ids by due time: all but those whose leases have expired unnoticed, in B:run.
local function places_of(q)
  local places = { q.later, q.blocked }
  for level = 0, 9 do
    places[#places + 1] = q.due .. level
  end
  return places
end

-- How many are due at this time and have this id or a lower one. Those due at one time are in the order of ids.
local function ties_up_to(place, due, id)
  local first = redis.call('ZCOUNT', place, '-inf', '(' .. due)
  local low, high = 0, redis.call('ZCOUNT', place, due, due)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', place, first + middle, first + middle)[1] > id then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
