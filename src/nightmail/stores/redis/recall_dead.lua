-- What a claim of dead letters under a token leased. Takes and extends nothing.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token
--
-- Answers the letters.

need({ 'HMGET' })
return leased_under(ARGV[5])
