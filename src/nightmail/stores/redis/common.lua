-- The prelude of every script: the keys of a queue, and which of them hold a message.
--
-- KEYS are tags, one for each queue: B = {prefix:queue}. Every key of the queue begins with its tag, so that all are
-- in one slot of a cluster:
--   B:m:<id>      hash  a message: body, state; headers, timer, key, token, last_error where it has them
--   B:due:<0..9>  zset  by priority, id by due time: may be claimed once it is due
--   B:later       zset  id by due time: has an ordering key, was never claimed, and is in no line yet
--   B:waits       zset  key, NUL, due time, id: the same messages, by key
--   B:lines       zset  key, NUL, id: due, but behind another message of its ordering key
--   B:blocked     zset  the same messages, id by due time
--   B:heads       hash  ordering key to id: the one message of the key that may run
--   B:run         zset  id by the end of its lease
--   B:expired     zset  the same, for expired leases whose messages are in B:due again
--   B:timers      hash  timer id to id
--   B:windows     zset  timer id by the end of its dedup window
--   B:superseded  zset  id: replaced while they ran
--   B:claims      zset  the tokens of recalled claims, by time: a claim that arrives late takes nothing
--   B:controls    hash  pauses, see pauses.lua
--   B:stops       hash  id to who asked for it to be stopped; a sweep removes those of messages that are gone
--   B:last        the highest id
--   B:d:<id>      hash  a dead letter: a message, why it died, its group; lease, token once it has been claimed
--   B:dead        zset  id of a dead letter
--   B:died        zset  the same, by when it died
--   B:dead:due    zset  id of a dead letter by when it may be claimed; one that was given up is not there
--   B:dead:run    zset  id of a dead letter by the end of the lease on it
--   B:dead:expired  zset  the same, for expired leases whose dead letters are in B:dead:due again
--   B:dead:letters  hash  id of a message to that of its dead letter
--   B:dead:groups   hash  digest of a reason and a fingerprint to both: the groups that dead letters are counted in
--   B:dead:group:<digest>  zset  id of a dead letter of this group by when it died
--   B:moved       zset  what came from the dead letters of another slot, see cross_store.lua
--   B:delivered   zset  id by the time it was done; B:v:<id>  hash  the message
-- Ids are sixteen hexadecimal digits: thirteen for microseconds, three for the process that made them.
-- A waiting message is in exactly one of due, later and lines; a leased one in run, or in expired and due.
-- While a message runs, its hash changes only when its lease is lost; anything else that may change is kept outside it:
-- a caller that acknowledges in its own MULTI watches the hash.
--
-- ARGV[1]  now in microseconds, or nothing: the server's clock
-- ARGV[2]  PUBLISH or SPUBLISH
-- ARGV[3]  the suffix of a queue's channel, after its tag
-- ARGV[4]  an id for the first dead letter, if there is one
--
-- Whatever can fail is tried before the first write: a script that fails has written nothing. That covers foreign types
-- (see the guards) and the account's rights (see `need`). Sending a wake-up is the exception: it comes last, and the
-- writes stand even if the account may not send it. Workers poll anyway.

local HORIZON = 60 * 1000000
local LATEST = 253402128000000000
local STATE = '>ddddddI4I4BBB'
local STATE_SIZE = 59
local MANY = 1000

local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

if ARGV[2] == 'SPUBLISH' then
  -- While a slot migrates its keys are on two nodes. Asking for two keys that do not exist is then refused by both,
  -- so that a script that would see half a queue ends here.
  redis.call('EXISTS', KEYS[1], KEYS[1] .. ':none')
end

-- How to try a command on a key that does not exist, without writing anything: for servers before 7.0.
local HARMLESS
if not redis.acl_check_cmd then
  HARMLESS = {
    ZADD = { 'XX', 0, '-' }, ZREM = { '-' }, ZSCORE = { '-' }, HDEL = { '-' }, HGET = { '-' }, HMGET = { '-' },
    HSET = { '-', '-' }, SET = { '-', 'XX' }, RENAME = { KEYS[1] .. ':none:2' }, ZRANGE = { 0, 0 },
    ZREVRANGE = { 0, 0 }, ZRANGEBYSCORE = { 0, 0 }, ZRANGEBYLEX = { '-', '+' }, ZREVRANGEBYLEX = { '+', '-' },
    ZREMRANGEBYLEX = { '-', '+' }, ZREMRANGEBYRANK = { 0, -1 }, ZCOUNT = { 0, 0 }, UNLINK = {}, DEL = {}, TYPE = {},
    HEXISTS = { '-' }, HSCAN = { 0 }, GET = {}, HGETALL = {}, ZCARD = {}, HLEN = {}, EXISTS = {},
  }
end

-- Whether the account may not use this command on our keys.
local function is_forbidden(command)
  local key = KEYS[1] .. ':none'
  if not HARMLESS then
    return not redis.acl_check_cmd(command, key, key)
  elseif not HARMLESS[command] then
    return false
  end
  local answer = redis.pcall(command, key, unpack(HARMLESS[command]))
  local refused = type(answer) == 'table' and answer.err and answer.err:find("can't", 1, true)
  if command == 'HSET' and not refused then
    redis.call('DEL', key)
  end
  return refused
end

-- Fails unless the account may use these commands on our keys. A command refused midway would leave what was written
-- before it, and one refused in a pcall would look like a missing message.
local function need(commands)
  for _, command in ipairs(commands) do
    if is_forbidden(command) then
      local why = 'NOPERM this account may not use ' .. command .. ' on the keys of a queue'
      error(redis.acl_check_cmd and { err = why } or why)
    end
  end
end

local queues = {}
for place, tag in ipairs(KEYS) do
  queues[place] = {
    message = tag .. ':m:', letter = tag .. ':d:', kept = tag .. ':v:', due = tag .. ':due:',
    later = tag .. ':later', waits = tag .. ':waits', lines = tag .. ':lines', blocked = tag .. ':blocked',
    heads = tag .. ':heads',
    run = tag .. ':run', expired = tag .. ':expired', timers = tag .. ':timers', windows = tag .. ':windows',
    superseded = tag .. ':superseded', claims = tag .. ':claims', controls = tag .. ':controls',
    stops = tag .. ':stops', last = tag .. ':last', dead = tag .. ':dead',
    died = tag .. ':died', dead_due = tag .. ':dead:due', dead_run = tag .. ':dead:run',
    dead_expired = tag .. ':dead:expired', letters = tag .. ':dead:letters', groups = tag .. ':dead:groups',
    group = tag .. ':dead:group:',
    moved = tag .. ':moved', delivered = tag .. ':delivered', bell = tag .. ARGV[3],
  }
end

-- Reading each key that may be written finds one of a foreign type, which would fail a write midway.
local function guard_due(q)
  q.sizes = {}
  for level = 0, 9 do
    q.sizes[level] = redis.call('ZCARD', q.due .. level)
  end
end

-- The same for whatever a message with an ordering key may move, and for burying unreadable messages.
local FOR_LINES = {
  'DEL', 'HMGET', 'HGET', 'HSET', 'HDEL', 'HGETALL', 'ZADD', 'ZREM', 'ZSCORE', 'ZREVRANGE', 'ZRANGEBYLEX', 'RENAME',
  'TYPE', 'GET', 'UNLINK', 'EXISTS', 'HEXISTS',
}
local needed_for_lines = false

local function guard_lines(q)
  if not needed_for_lines then
    need(FOR_LINES)
    needed_for_lines = true
  end
  guard_due(q)
  for _, key in ipairs({ q.heads, q.timers, q.letters, q.groups }) do
    redis.call('HLEN', key)
  end
  for _, key in ipairs({ q.run, q.expired, q.later, q.waits, q.lines, q.blocked, q.dead, q.died, q.dead_due }) do
    redis.call('ZCARD', key)
  end
  q.replaced = redis.call('ZCARD', q.superseded)
end

local function after(delay)
  return math.min(now + delay, LATEST)
end

local function pack_state(s)
  return struct.pack(STATE, s.due, s.published, s.expires, s.claimed, s.first, s.last,
    s.attempts, s.deliveries, s.priority, s.superseded, s.started)
end

-- Counters stop here: one more would wrap to 0.
local MOST = 2147483647

local function one_more(counter)
  return math.min(counter + 1, MOST)
end

-- Whether this can be an id of ours. Anything else would shift what follows it in a reply.
-- Asked for every message: looking for a wrong digit instead, '[^0-9a-f]', takes four times as long.
local function is_id(id)
  return #id == 16 and id:find('^[0-9a-f]+$') ~= nil
end

-- The state of a message, or nothing if we did not write it.
local function unpack_state(text)
  if not text or #text ~= STATE_SIZE then
    return nil
  end
  local due, published, expires, claimed, first, last, attempts, deliveries, priority, superseded, started =
    struct.unpack(STATE, text)
  -- NaN fails every comparison.
  if due >= 0 and due <= LATEST and published >= 0 and published <= LATEST and expires >= 0 and expires <= LATEST
    and claimed >= 0 and claimed <= LATEST and first >= 0 and first <= LATEST and last >= 0 and last <= LATEST
    and priority <= 9 then
    return {
      due = due, published = published, expires = expires, claimed = claimed, first = first, last = last,
      attempts = attempts, deliveries = deliveries, priority = priority, superseded = superseded, started = started,
    }
  end
  return nil
end

-- Fields of a message; none if there is no such message, or its key has another type.
local function fields(q, id, ...)
  if not is_id(id) then
    return {}
  end
  local found = redis.pcall('HMGET', q.message .. id, ...)
  return found.err and {} or found
end

local function state_of(q, id)
  return unpack_state(fields(q, id, 'state')[1])
end

local function ring_if_soon(q, due)
  if due < now + HORIZON then
    q.rung = true
  end
end

local function ring()
  for _, q in ipairs(queues) do
    if q.rung then
      -- The account may lack the right: what was written stays, and workers poll anyway.
      redis.pcall(ARGV[2], q.bell, '')
    end
  end
end

-- A command with many arguments, in parts: more than a few thousand at once overflow Lua's stack.
local function in_parts(command, key, list)
  local total = 0
  for first = 1, #list, MANY do
    total = total + redis.call(command, key, unpack(list, first, math.min(first + MANY - 1, #list)))
  end
  return total
end

-- The given id, or the last one plus one if that is higher: within a queue, ids follow the order of the writes.
-- A last id that is so high that none can follow does not count.
local HIGHEST = '7f00000000000000'

local function next_id(given, last)
  if last and given <= last and last < HIGHEST then
    return string.format('%013x', tonumber(last:sub(1, 13), 16) + 1) .. given:sub(14)
  end
  return given
end

-- A stored id, unless it is missing or was not written by us.
local function own_id(stored)
  return stored and is_id(stored) and stored < HIGHEST and stored or nil
end

-- The highest id of a queue so far, if one is recorded.
local function last_id(q)
  return own_id(redis.call('GET', q.last))
end

local letter = ARGV[4]

-- The lease record of a dead letter that was given up.
local GIVEN_UP = struct.pack('>ddI4I4', 0, 0, 0, 0)

-- Count a dead letter in the group of its reason and its fingerprint (nothing: it has no error); the group's digest.
local function enter_group(q, id, reason, fingerprint)
  local name = #reason .. ':' .. reason .. (fingerprint and '!' .. fingerprint or '')
  q.entered = q.entered or {}
  local digest = q.entered[name]
  if not digest then
    digest = redis.sha1hex(name):sub(1, 16)
    q.entered[name] = digest
    if redis.call('HEXISTS', q.groups, digest) == 0 then
      redis.call('HSET', q.groups, digest, name)
    end
  end
  -- No guard knows this key. If a foreign one is in its place, dead_groups.lua notices that letters are missing.
  redis.pcall('ZADD', q.group .. digest, now, id)
  return digest
end

-- The id and the group of a new dead letter of a message. It may be claimed at once, unless it is given up.
local function new_letter(q, message, reason, fingerprint, given_up)
  local id = next_id(letter, own_id(redis.call('ZREVRANGE', q.dead, 0, 0)[1]))
  -- No dead letter is ever overwritten.
  while redis.call('EXISTS', q.letter .. id) == 1 do
    id = next_id(id, id)
  end
  letter = next_id(letter, id)
  redis.call('ZADD', q.dead, 0, id)
  redis.call('ZADD', q.died, now, id)
  if not given_up then
    redis.call('ZADD', q.dead_due, now, id)
  end
  q.rung = true
  redis.call('HSET', q.letters, message, id)
  return id, enter_group(q, id, reason, fingerprint)
end

local function running(q, id)
  local till = redis.call('ZSCORE', q.run, id)
  return till and tonumber(till) > now
end

local function superseded(q, id)
  return q.replaced > 0 and redis.call('ZSCORE', q.superseded, id) and 1 or 0
end

local function owns(q, id, timer)
  return timer and redis.call('HGET', q.timers, timer) == id
end

local function release_timer(q, id, timer)
  if owns(q, id, timer) then
    redis.call('HDEL', q.timers, timer)
  end
end

-- Make this the one message of its ordering key that may run.
local function offer(q, id, s, key)
  redis.call('HSET', q.heads, key, id)
  redis.call('ZADD', q.due .. s.priority, s.due, id)
end

local function block(q, id, s, key)
  redis.call('ZADD', q.lines, 0, key .. '\0' .. id)
  redis.call('ZADD', q.blocked, s.due, id)
end

-- The entry in B:waits of a message with an ordering key that is not due yet.
local function wait_of(id, s, key)
  return key .. '\0' .. string.format('%016x', s.due) .. id
end

-- Put an unleased message where it belongs.
local function enter(q, id, s, key)
  if not key or s.started == 1 then
    redis.call('ZADD', q.due .. s.priority, s.due, id)
    return
  end
  if s.due > now then
    redis.call('ZADD', q.later, s.due, id)
    redis.call('ZADD', q.waits, 0, wait_of(id, s, key))
    return
  end
  local head = redis.call('HGET', q.heads, key)
  local first = head and state_of(q, head)
  if not first then
    offer(q, id, s, key)
  elseif first.started == 0 and id < head then
    redis.call('ZREM', q.due .. first.priority, head)
    block(q, head, first, key)
    offer(q, id, s, key)
  else
    block(q, id, s, key)
  end
end

-- Take a message out of where it is. Its ordering key is not released.
local function leave(q, id, s, key)
  if redis.call('ZREM', q.run, id) == 1 then
    return
  end
  redis.call('ZREM', q.due .. s.priority, id)
  redis.call('ZREM', q.expired, id)
  if key and s.started == 0 then
    redis.call('ZREM', q.later, id)
    redis.call('ZREM', q.waits, wait_of(id, s, key))
    redis.call('ZREM', q.blocked, id)
    redis.call('ZREM', q.lines, key .. '\0' .. id)
  end
end

-- Clear the lease, and put the message where it now belongs. `error`: its last error from now on, if that changes.
local function bring_back(q, id, s, key, error)
  s.claimed = 0
  if error then
    redis.call('HSET', q.message .. id, 'state', pack_state(s), 'token', '', 'last_error', error)
  else
    redis.call('HSET', q.message .. id, 'state', pack_state(s), 'token', '')
  end
  enter(q, id, s, key)
  ring_if_soon(q, s.due)
end

-- Undo a claim: the message keeps its due time, and so its place.
local function hand_back(q, id, s, key)
  s.deliveries = math.max(s.deliveries - 1, 0)
  bring_back(q, id, s, key)
end

local bury_unreadable

-- Release an ordering key, and offer the next message in its line. Rings whether or not there is one.
local function free(q, id, key)
  if not key or redis.call('HGET', q.heads, key) ~= id then
    return
  end
  redis.call('HDEL', q.heads, key)
  q.rung = true
  while true do
    local first = redis.call('ZRANGEBYLEX', q.lines, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)[1]
    if not first then
      return
    end
    local following = first:sub(-16)
    redis.call('ZREM', q.lines, first)
    redis.call('ZREM', q.blocked, following)
    local s = state_of(q, following)
    if s then
      offer(q, following, s, key)
      return
    end
    bury_unreadable(q, following)
  end
end

local WHY_UNREADABLE = {
  hash = 'its hash lacks the body, or its state is not what this version writes',
  none = 'its hash is gone',
  string = 'a string was in the place of its hash: it is the body of this letter',
}

-- Move a message that other software has changed to the dead letters: as much of it as is left.
function bury_unreadable(q, id)
  for _, place in ipairs({ q.run, q.expired, q.later, q.blocked, q.superseded }) do
    redis.call('ZREM', place, id)
  end
  for level = 0, 9 do
    redis.call('ZREM', q.due .. level, id)
  end
  local from = q.message .. id
  local kind = redis.call('TYPE', from).ok
  local error = WHY_UNREADABLE[kind] or 'a ' .. kind .. ' is in the place of its hash, and was left there'
  -- Without a digit in it, such an error is its own fingerprint.
  local new, group = new_letter(q, id, 'unreadable', error, true)
  local into = q.letter .. new
  if kind == 'hash' then
    release_timer(q, id, redis.call('HGET', from, 'timer'))
    redis.call('RENAME', from, into)
    redis.call('HDEL', into, 'token', 'last_error')
  elseif kind == 'string' then
    redis.call('HSET', into, 'body', redis.call('GET', from))
    redis.call('DEL', from)
  end
  if not unpack_state(redis.call('HGET', into, 'state')) then
    redis.call('HSET', into, 'state', pack_state({
      due = now, published = now, expires = 0, claimed = 0, first = 0, last = 0,
      attempts = 0, deliveries = 0, priority = 0, superseded = 0, started = 0,
    }))
  end
  redis.call('HSET', into, 'message', id, 'reason', 'unreadable', 'error', error, 'group', group,
    'died', string.format('%.0f', now), 'lease', GIVEN_UP)
  -- Its hash cannot be trusted to say which ordering key it held. Read once per call: whatever is offered meanwhile is
  -- readable.
  if not q.key_of then
    q.key_of = {}
    local heads = redis.call('HGETALL', q.heads)
    for place = 1, #heads, 2 do
      q.key_of[heads[place + 1]] = heads[place]
    end
  end
  free(q, id, q.key_of[id])
end

-- One message for a reply: the place of its queue, its id, its state, and its texts.
local function record(place, id, found)
  local body, state, headers, timer, key = found[1], found[2], found[3] or '', found[4] or '', found[5] or ''
  return struct.pack('>I2', place) .. id .. state
    .. struct.pack('>I4I4I4I4', #timer, #key, #headers, #body) .. timer .. key .. headers .. body
end
