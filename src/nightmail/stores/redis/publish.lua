-- Store messages by the rules of `Store.publish`: all of them, or none.
--
-- KEYS     the queues' tags, and last the tag of the queue of the publishing handler's own message
-- ARGV[5]  the place of that tag, or nothing; ARGV[6] its key's part after the tag; ARGV[7] its token
-- ARGV[8]  1: the ids are final, because the caller has them already; 0: a higher one may be given
-- ARGV[9]  how many replicas the caller will wait for
-- then for each message: its facts, see `FACTS`; its body
--
-- Answers the id of each message, sixteen spaces for one that was not stored; or `lost` if the handler's own lease is.

-- The facts of a message: id, place of its queue, priority, what to do when its timer id is taken (0 skip,
-- 1 replace, 2 earliest, 3 latest), kind of its due time (0 now, 1 a delay, 2 a moment), due time, time to its expiry,
-- dedup window (0: none), sizes of timer id and ordering key; then these two and its headers.
local FACTS = '>c16I2BBBdddI2I2'
local SKIP, EARLIEST, LATER = 0, 2, 3
local NOW, IN = 0, 1
local NOTHING = string.rep(' ', 16)

need({ 'DEL', 'HSET', 'ZADD', 'SET' })
local own
if ARGV[5] ~= '' then
  need({ 'HGET' })
  own = KEYS[tonumber(ARGV[5])] .. ARGV[6]
  if redis.pcall('HGET', own, 'token') ~= ARGV[7] then
    return 'lost'
  end
end

local function read(facts, body)
  local m = { body = body }
  local place, timer, key, from
  m.id, place, m.priority, m.policy, m.kind, m.due, m.expires_in, m.dedup_for, timer, key, from =
    struct.unpack(FACTS, facts)
  m.q = queues[place]
  m.timer = timer > 0 and facts:sub(from, from + timer - 1) or nil
  m.key = key > 0 and facts:sub(from + timer, from + timer + key - 1) or nil
  m.headers = facts:sub(from + timer + key)
  if m.kind == NOW then
    m.due = now
  elseif m.kind == IN then
    m.due = math.max(after(m.due), now)
  else
    m.due = math.max(math.min(m.due, LATEST), now)
  end
  return m
end

local function fresh_state(m, started)
  return {
    due = m.due, published = now, expires = m.expires_in > 0 and after(m.expires_in) or 0,
    claimed = 0, first = 0, last = 0, attempts = 0, deliveries = 0, priority = m.priority,
    superseded = 0, started = started,
  }
end

local function add(values, field, value)
  values[#values + 1] = field
  values[#values + 1] = value
end

local function write(m, id, s)
  local values = { 'body', m.body, 'state', pack_state(s) }
  if m.headers ~= '' then
    add(values, 'headers', m.headers)
  end
  if m.timer then
    add(values, 'timer', m.timer)
  end
  if m.key then
    add(values, 'key', m.key)
  end
  redis.call('HSET', m.q.message .. id, unpack(values))
  ring_if_soon(m.q, s.due)
  if m.key then
    enter(m.q, id, s, m.key)
    return
  end
  -- Without an ordering key no other message's place depends on it: these are added together at the end.
  local places = m.q.places[s.priority] or {}
  m.q.places[s.priority] = places
  places[#places + 1] = s.due
  places[#places + 1] = id
end

-- The id under which a new message is stored.
local function given_id(m)
  local q = m.q
  local id = m.id
  if ARGV[8] == '0' then
    id = next_id(id, q.highest)
  else
    -- Nothing is ever overwritten, not even by a message whose id the caller already has.
    while redis.call('EXISTS', q.message .. id) == 1 do
      id = next_id(id, id)
    end
  end
  if not q.highest or id > q.highest then
    q.highest = id
  end
  return id
end

local function store(m)
  local id = given_id(m)
  if m.timer then
    redis.call('HSET', m.q.timers, m.timer, id)
    if m.dedup_for > 0 then
      local over = redis.call('ZRANGEBYSCORE', m.q.windows, '-inf', now, 'LIMIT', 0, 100)
      in_parts('ZREM', m.q.windows, over)
      local before = tonumber(redis.call('ZSCORE', m.q.windows, m.timer) or 0)
      redis.call('ZADD', m.q.windows, math.max(before, after(m.dedup_for)), m.timer)
    end
  end
  write(m, id, fresh_state(m, 0))
  return id
end

-- Overwrite a waiting message: it keeps its id and its place.
local function overwrite(m, id, s, key)
  local q = m.q
  leave(q, id, s, key)
  local started = s.started
  if key ~= m.key then
    started = 0
  end
  if started == 0 then
    free(q, id, key)
  end
  redis.call('ZREM', q.superseded, id)
  -- A key of a foreign type there holds no request.
  redis.pcall('HDEL', q.stops, id)
  redis.call('DEL', q.message .. id)
  write(m, id, fresh_state(m, started))
  return id
end

local function publish(m)
  if not m.timer then
    return store(m)
  end
  local q = m.q
  local owner = redis.call('HGET', q.timers, m.timer)
  local found = owner and fields(q, owner, 'state', 'key') or {}
  local s = unpack_state(found[1])
  if not s then
    owner = nil -- None, or one that cannot be read.
  end
  if owner and q.message .. owner == own then
    return store(m) -- A handler rearms its own timer: its message goes on without the timer id.
  end
  if m.policy == SKIP then
    if owner or tonumber(redis.call('ZSCORE', q.windows, m.timer) or 0) > now then
      return NOTHING
    end
    return store(m)
  end
  if not owner then
    return store(m)
  end
  if running(q, owner) then
    -- Due times are not compared: a running message is no longer scheduled.
    redis.call('ZADD', q.superseded, 0, owner)
    return store(m)
  end
  if (m.policy == EARLIEST and m.due >= s.due) or (m.policy == LATER and m.due <= s.due) then
    return NOTHING
  end
  return overwrite(m, owner, s, found[2] or nil)
end

for _, q in ipairs(queues) do
  q.places, q.levels = {}, {}
end
local messages = {}
for place = 10, #ARGV, 2 do
  local m = read(ARGV[place], ARGV[place + 1])
  messages[#messages + 1] = m
  m.q.levels[m.priority] = true
  m.q.related = m.q.related or m.timer or m.key
end
-- A message without timer id and ordering key touches little; any other may move other messages.
for _, q in ipairs(queues) do
  if q.related then
    need({ 'ZRANGEBYSCORE' })
    guard_lines(q)
    redis.call('ZCARD', q.windows)
  end
  for level in pairs(q.levels) do
    redis.call('ZCARD', q.due .. level)
  end
  q.before = last_id(q)
  q.highest = q.before
end

local ids = {}
for place, m in ipairs(messages) do
  ids[place] = publish(m)
end
for _, q in ipairs(queues) do
  for level, places in pairs(q.places) do
    in_parts('ZADD', q.due .. level, places)
  end
  -- WAIT covers what this connection has written last. Of a timer id that is taken nothing is: without this, a publish
  -- that is repeated because no replica had confirmed it would succeed by a replica that still has not.
  if q.highest and (q.highest ~= q.before or ARGV[9] ~= '0') then
    redis.call('SET', q.last, q.highest)
  end
end
ring()
return table.concat(ids)
