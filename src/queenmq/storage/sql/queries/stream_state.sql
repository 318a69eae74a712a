-- The state of a query ($1) in a partition ($2): of these keys ($3) if there are any, with keys that begin with $4, whose window ends
-- at $5 or before; up to $6 rows.
SELECT s.key, s.value, s.updated_at FROM queen.stream_state s
WHERE s.query_id = $1 AND s.partition_id = $2
  AND (cardinality($3::text[]) = 0 OR s.key = ANY ($3))
  AND ($4::text IS NULL OR starts_with(s.key, $4))
  AND ($5::double precision IS NULL OR s.window_end <= $5)
ORDER BY s.key LIMIT $6
