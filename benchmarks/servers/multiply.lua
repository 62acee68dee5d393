-- Copy messages or dead letters of a queue, as the store keeps them (see common.lua of the store).
--
-- KEYS     the queue's tag
-- ARGV[1]  m or d; ARGV[2] which copy it is; then the ids
--
-- A copy is newer, in the same place as the original, but behind the first of its ordering key. In an error @ becomes
-- the number of the copy.

local tag, kind, number = KEYS[1], ARGV[1], tonumber(ARGV[2])
local APART = 100000000
local newest = redis.call('GET', tag .. ':last') or ''

local function copied(id)
  return string.format('%013x', tonumber(id:sub(1, 13), 16) + number * APART) .. id:sub(14)
end

local function repeat_score(place, id, new)
  local score = redis.call('ZSCORE', place, id)
  if score then
    redis.call('ZADD', place, score, new)
  end
  return score
end

local function copy_message(id, new)
  redis.call('COPY', tag .. ':m:' .. id, tag .. ':m:' .. new)
  local key = redis.call('HGET', tag .. ':m:' .. id, 'key')
  if not key then
    for level = 0, 9 do
      if repeat_score(tag .. ':due:' .. level, id, new) then
        break
      end
    end
    return
  end
  local due = repeat_score(tag .. ':later', id, new)
  if due then
    redis.call('ZADD', tag .. ':waits', 0, key .. '\0' .. string.format('%016x', tonumber(due)) .. new)
    return
  end
  for level = 0, 9 do
    due = due or redis.call('ZSCORE', tag .. ':due:' .. level, id)
  end
  redis.call('ZADD', tag .. ':blocked', due or redis.call('ZSCORE', tag .. ':blocked', id), new)
  redis.call('ZADD', tag .. ':lines', 0, key .. '\0' .. new)
end

local function copy_letter(id, new)
  local letter = tag .. ':d:' .. new
  redis.call('COPY', tag .. ':d:' .. id, letter)
  local message = copied(redis.call('HGET', letter, 'message'))
  redis.call('HSET', letter, 'message', message)
  redis.call('HSET', tag .. ':dead:letters', message, new)
  local error = redis.call('HGET', letter, 'error')
  if error then
    redis.call('HSET', letter, 'error', (error:gsub('@', number)))
  end
  redis.call('ZADD', tag .. ':dead', 0, new)
  repeat_score(tag .. ':died', id, new)
  repeat_score(tag .. ':dead:group:' .. redis.call('HGET', letter, 'group'), id, new)
  repeat_score(tag .. ':dead:due', id, new)
end

for place = 3, #ARGV do
  local id = ARGV[place]
  local new = copied(id)
  if kind == 'm' then
    copy_message(id, new)
    newest = new > newest and new or newest
  else
    copy_letter(id, new)
  end
end
if newest ~= '' then
  redis.call('SET', tag .. ':last', newest)
end
