-- What the scripts about dead letters share.

local LEASE = '>ddI4I4'
local LEASE_SIZE = 24
-- Without the body: only a claim needs it.
local OF_A_LETTER = {
  'token', 'state', 'headers', 'timer', 'key', 'reason', 'error', 'died', 'message', 'lease', 'moving',
}

local FOR_LETTERS = {
  'DEL', 'HMGET', 'HGET', 'HSET', 'HDEL', 'HSCAN', 'ZADD', 'ZREM', 'ZSCORE', 'ZRANGE', 'ZRANGEBYSCORE', 'UNLINK',
}
local needed_for_letters = false

local function guard_letters(q)
  if not needed_for_letters then
    need(FOR_LETTERS)
    needed_for_letters = true
  end
  for _, key in ipairs({ q.dead, q.died, q.dead_due, q.dead_run, q.dead_expired }) do
    redis.call('ZCARD', key)
  end
  redis.call('HLEN', q.letters)
  redis.call('HLEN', q.groups)
end

local function a_time(number)
  return number and number >= 0 and number <= LATEST and number or 0
end

local function pack_lease(lease)
  return struct.pack(LEASE, lease.due, lease.claimed, lease.attempts, lease.deliveries)
end

-- The lease record of a dead letter: its own due time, claim and counters. Due is 0 once it was given up.
local function unpack_lease(text, died)
  if not text or #text ~= LEASE_SIZE then
    return { due = died, claimed = 0, attempts = 0, deliveries = 0 }
  end
  local due, claimed, attempts, deliveries = struct.unpack(LEASE, text)
  return { due = a_time(due), claimed = a_time(claimed), attempts = attempts, deliveries = deliveries }
end

-- A dead letter, or nothing if it is gone or we did not write it.
local function read_letter(q, id)
  if not is_id(id) then
    return nil
  end
  local found = redis.pcall('HMGET', q.letter .. id, unpack(OF_A_LETTER))
  local s = not found.err and unpack_state(found[2])
  if not s then
    return nil
  end
  local died = a_time(tonumber(found[8] or ''))
  return {
    found = found, state = s, timer = found[4] or nil, key = found[5] or nil,
    reason = found[6] or '', error = found[7] or nil, died = died,
    message = found[9] and is_id(found[9]) and found[9] or id,
    lease = unpack_lease(found[10], died), token = found[1] or '', moving = found[11] or nil,
  }
end

local function is_held(q, id)
  local till = redis.call('ZSCORE', q.dead_run, id)
  return till and tonumber(till) > now
end

-- Take it out of where it is: neither offered nor held. It stays among the dead letters.
local function withdraw(q, id)
  redis.call('ZREM', q.dead_due, id)
  redis.call('ZREM', q.dead_run, id)
  redis.call('ZREM', q.dead_expired, id)
end

-- Take it out of this group; whether it was in there. A group that is empty is gone.
local function leave_group(q, id, digest)
  local group = q.group .. digest
  if redis.pcall('ZREM', group, id) ~= 1 then
    return false
  end
  if redis.call('ZCARD', group) == 0 then
    redis.call('HDEL', q.groups, digest)
    q.entered = nil
  end
  return true
end

-- In how many groups this call may still look for dead letters that do not say theirs.
local groups_left = MANY

-- Before its hash is gone, which says of which message and of which group it is.
local function withdraw_for_good(q, id)
  local found = redis.pcall('HMGET', q.letter .. id, 'group', 'message')
  local digest, message = found[1], found[2]
  if not (digest and leave_group(q, id, digest)) and groups_left > 0 then
    -- Other software has changed or deleted it.
    local groups = redis.call('HSCAN', q.groups, 0, 'COUNT', groups_left)[2]
    for place = 1, #groups, 2 do
      groups_left = groups_left - 1
      if leave_group(q, id, groups[place]) then
        break
      end
    end
  end
  if message and redis.call('HGET', q.letters, message) == id then
    redis.call('HDEL', q.letters, message)
  end
  withdraw(q, id)
  redis.call('ZREM', q.dead, id)
  redis.call('ZREM', q.died, id)
end

-- How many dead letters one call looks at, and how many of these it reads: a few milliseconds for either.
local MOST_LOOKED_AT, MOST_READ = 500, 200

-- A field of a dead letter; nothing if it has none, or its key has another type.
local function field_of(q, id, name)
  local found = redis.pcall('HGET', q.letter .. id, name)
  return type(found) == 'string' and found or nil
end

local function says(error, text)
  return error ~= nil and error:find(text, 1, true) ~= nil
end

-- Whether a dead letter matches every given condition. These are arguments: died more than this many microseconds ago;
-- a byte and the reason; a byte and a text that the error contains. Each may be nothing. Reads only what they ask for:
-- all of a dead letter takes five times as long.
local function is_meant(q, id, age, reason, text)
  return (age == '' or a_time(tonumber(field_of(q, id, 'died') or '')) < now - tonumber(age))
    and (reason == '' or (field_of(q, id, 'reason') or '') == reason:sub(2))
    and (text == '' or says(field_of(q, id, 'error'), text:sub(2)))
end

-- One dead letter for a reply: the message it was, the message's id, when it died, its lease record, and why it died.
local function letter_record(place, id, l, body)
  l.found[1] = body
  local why, what = l.reason:sub(1, 65535), l.error and '!' .. l.error or ''
  return record(place, id, l.found) .. l.message .. struct.pack('>d', l.died) .. pack_lease(l.lease)
    .. struct.pack('>I2I4', #why, #what) .. why .. what
end

local function body_of(q, id)
  return redis.call('HGET', q.letter .. id, 'body') or ''
end

-- How many bytes of bodies and headers may still be read; the first dead letter always fits.
local bytes_left, nothing_read = 0, true

-- Whether the dead letter with this body still fits.
local function fits(l, body)
  local size = #body + #(l.found[3] or '')
  if size > bytes_left and not nothing_read then
    return false
  end
  bytes_left, nothing_read = bytes_left - size, false
  return true
end

-- Keep the dead letter, and never offer it again. It was withdrawn.
local function give_up(q, id, l)
  l.lease.due, l.lease.claimed = 0, 0
  redis.call('HSET', q.letter .. id, 'lease', pack_lease(l.lease), 'token', '')
end

-- Clear the lease, and offer the dead letter from its due time.
local function offer_again(q, id, l)
  l.lease.claimed = 0
  redis.call('HSET', q.letter .. id, 'lease', pack_lease(l.lease), 'token', '')
  redis.call('ZADD', q.dead_due, l.lease.due, id)
  ring_if_soon(q, l.lease.due)
end

-- Undo a claim: the dead letter keeps its due time.
local function hand_letter_back(q, id, l)
  l.lease.deliveries = math.max(l.lease.deliveries - 1, 0)
  offer_again(q, id, l)
end
