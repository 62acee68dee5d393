-- What the scripts share that show messages whatever their state.

-- A message, followed by when the lease on it ends or ended (0: it has none), 1 if it runs, and its last error with its
-- size in front of it; then its state, its ordering key and its timer id. Nothing if there is none that can be read.
local function stored_record(q, id)
  local found = fields(q, id, 'body', 'state', 'headers', 'timer', 'key', 'last_error')
  local s = found[1] and unpack_state(found[2])
  if not s then
    return nil
  end
  local till = redis.call('ZSCORE', q.run, id) or redis.call('ZSCORE', q.expired, id) or 0
  s.superseded = superseded(q, id)
  found[2] = pack_state(s)
  local error = found[6] or ''
  local lease = struct.pack('>dBI4', tonumber(till), running(q, id) and 1 or 0, #error)
  return record(1, id, found) .. lease .. error, s, found[5] or nil, found[4] or nil
end
