-- Tokens that expired in the last $1 days and were used till then (that is noted once an hour), the newest first, up to $2; without those of which
-- there is a valid one of the same name.
SELECT t.name, t.expires_at
FROM queen.tokens t
WHERE t.revoked_at IS NULL AND t.expires_at BETWEEN clock_timestamp() - make_interval(days => $1) AND clock_timestamp()
  AND t.last_used_at > t.expires_at - interval '2 hours'
  AND NOT EXISTS (
      SELECT 1 FROM queen.tokens x
      WHERE x.name = t.name AND x.revoked_at IS NULL AND (x.expires_at IS NULL OR x.expires_at > clock_timestamp()))
ORDER BY t.expires_at DESC LIMIT $2
