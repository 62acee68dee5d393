-- What stays of a worker that no longer consumes a queue. Shared by report.lua and sign_off.lua.
--
--   B:consumers  hash  queue to when the one that consumed it last was seen, its process id, and its host

local consumers, left = KEYS[1] .. ':consumers', {}

local function queues_in(said)
  return type(said) == 'table' and type(said.queues) == 'table' and said.queues or {}
end

-- This worker was seen then, and consumes its queues no longer, except these. What cannot be read has none.
local function note_leaving(kept, seen, except)
  local is_readable, said = pcall(cjson.decode, kept and kept:match('^%d+ (.*)$') or '')
  for _, queue in ipairs(is_readable and queues_in(said) or {}) do
    local is_later = not left[queue] or left[queue].seen < seen
    if type(queue) == 'string' and not except[queue] and is_later then
      local text = string.format('%.0f %.0f ', seen, tonumber(said.pid) or 0) .. tostring(said.host)
      left[queue] = { seen = seen, text = text }
    end
  end
end

-- What to write for those that were noted: fields to set, of those whose record is older, and the fields of records
-- that are too old to be kept.
local function changes_for_left(oldest)
  local new, gone = {}, {}
  local known = next(left) and redis.call('HGETALL', consumers) or {}
  for place = 1, #known, 2 do
    local seen = tonumber(known[place + 1]:match('^%d+')) or 0
    local own = left[known[place]]
    if own and own.seen <= seen then
      left[known[place]] = nil
    elseif not own and seen < oldest then
      gone[#gone + 1] = known[place]
    end
  end
  for queue, own in pairs(left) do
    if own.seen >= oldest then
      new[#new + 1] = queue
      new[#new + 1] = own.text
    end
  end
  return new, gone
end

local function write_left(new, gone)
  for place = 1, #new, 2 do
    redis.call('HSET', consumers, new[place], new[place + 1])
  end
  for _, queue in ipairs(gone) do
    redis.call('HDEL', consumers, queue)
  end
end
