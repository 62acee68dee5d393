-- What a claim of dead letters under a token leased. Takes and extends nothing.
--
-- KEYS     the queues' tags
-- ARGV[5]  the token
--
-- Answers the letters.

return leased_under(ARGV[5])
