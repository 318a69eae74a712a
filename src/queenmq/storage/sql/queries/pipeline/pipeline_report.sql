-- What a driver says, every few seconds and when it ends: its state, where it stands, and what it has done since it said so last. Returns no row
-- if another generation has taken its place. $5 is the sum of positions by queue, null if it is not known; $6 how many seconds ago everything
-- was read that was there, null likewise. While it has read all that is stored, it has covered everything up to now.
WITH stored AS (
    SELECT coalesce($5::jsonb, s.positions) AS positions FROM queen.pipeline_states s WHERE s.name = $1::text
), behind AS (
    SELECT coalesce(sum(greatest(h.last - r.value::bigint, 0)), 0) AS messages, count(*) AS queues
    FROM stored, jsonb_each_text(stored.positions) r
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(l.last_offset), 0) AS last
        FROM queen.partition_lookup l WHERE l.queue_id = r.key::uuid
    ) h
)
UPDATE queen.pipeline_states s
SET state = $3::text, seen_at = clock_timestamp(), positions = stored.positions, rows = s.rows + $7::bigint, batches = s.batches + $8::bigint,
    rate = $9::float8, failures = CASE WHEN $10::boolean THEN 0 ELSE s.failures END,
    error = coalesce($4::text, s.error), error_at = CASE WHEN $4::text IS NULL THEN s.error_at ELSE clock_timestamp() END,
    covered_until = CASE WHEN behind.messages = 0 AND behind.queues > 0 THEN clock_timestamp()
        ELSE greatest(s.covered_until, clock_timestamp() - make_interval(secs => $6::float8)) END
FROM queen.pipeline_leases l, stored, behind
WHERE s.name = $1::text AND l.name = s.name AND l.generation = $2::bigint
RETURNING true
