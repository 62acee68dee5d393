-- Note that the keys are of this version now, if they were of the version before: several processes may say so.
--
-- KEYS     the tag of the registry
-- ARGV[5]  the version; ARGV[6] the oldest version of the code that it serves

local meta = KEYS[1] .. ':meta'
need({ 'HGET', 'HSET' })

if redis.call('HGET', meta, 'version') == tostring(tonumber(ARGV[5]) - 1) then
  redis.call('HSET', meta, 'version', ARGV[5], 'serves', ARGV[6])
end
