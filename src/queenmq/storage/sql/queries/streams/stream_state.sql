-- The state of a query ($1) in a partition ($2): of these keys ($3) if there are any, with keys that begin with $4, whose window ends
-- at $5 or before; up to $6 rows. If they have more than $7 bytes in all, values are left out, and `omitted` is true. Remembers how new the
-- newest of them was, if it is newer than what was read before. That commit is not waited for on disk: a read that is forgotten makes a
-- flush wait for the next one.
WITH found AS MATERIALIZED (
    SELECT s.key, CASE WHEN s.upto <= $7 THEN s.value END AS value, s.updated_at, s.upto > $7 AS omitted
    FROM (
        SELECT s.key, s.value, s.updated_at,
               sum(octet_length(s.value)) OVER (ORDER BY s.key ROWS UNBOUNDED PRECEDING) AS upto
        FROM queen.stream_state s
        WHERE s.query_id = $1 AND s.partition_id = $2
          AND (cardinality($3::text[]) = 0 OR s.key = ANY ($3))
          AND ($4::text IS NULL OR starts_with(s.key, $4))
          AND ($5::double precision IS NULL OR s.window_end <= $5)
        ORDER BY s.key LIMIT $6
    ) s
), newest AS MATERIALIZED (
    SELECT f.seen, set_config('synchronous_commit', 'off', true) FROM (SELECT max(updated_at) AS seen FROM found) f
    WHERE f.seen IS NOT NULL AND NOT EXISTS (SELECT 1 FROM found WHERE omitted) AND NOT EXISTS (
        SELECT 1 FROM queen.stream_reads r WHERE r.query_id = $1 AND r.partition_id = $2 AND r.seen >= f.seen)
), remembered AS (
    INSERT INTO queen.stream_reads AS r (query_id, partition_id, seen) SELECT $1, $2, seen FROM newest
    ON CONFLICT (query_id, partition_id) DO UPDATE SET seen = greatest(r.seen, excluded.seen)
)
SELECT key, value, updated_at, omitted FROM found ORDER BY key
