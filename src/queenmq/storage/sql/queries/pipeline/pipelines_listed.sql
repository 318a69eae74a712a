-- Declared pipelines with how they are, of a name ($1) if it is given, and only those all of whose queues match one of $2, patterns for LIKE (null:
-- all). The state is that of the last report; a pipeline that shall run and whose lease nobody holds is `unsupervised`.
SELECT p.name, p.kind, p.version, p.declaration::text AS declaration, p.reads, p.writes, p.wanted, p.changed_at, p.state_number,
       CASE WHEN held.yes THEN s.state WHEN p.wanted = 'running' THEN 'unsupervised' ELSE 'stopped' END AS state,
       CASE WHEN held.yes THEN l.holder_name END AS supervisor, l.generation, s.version AS running_version, s.started_at, s.seen_at, s.starts,
       s.failures, CASE WHEN held.yes THEN s.next_start_at END AS next_start_at, s.error, s.error_at, s.rows, s.batches,
       CASE WHEN held.yes AND s.state = 'running' THEN s.rate END AS rate, behind.messages::bigint AS lag,
       CASE WHEN behind.messages = 0 THEN 0.0
            WHEN behind.messages > 0 THEN greatest(extract(epoch FROM clock_timestamp() - s.covered_until), 0)::float8 END AS lag_seconds,
       b.ended_at AS batch_ended_at, b.number AS batch_number, b.rows AS batch_rows, b.seconds AS batch_seconds
FROM queen.pipelines p
JOIN queen.pipeline_leases l ON l.name = p.name
JOIN queen.pipeline_states s ON s.name = p.name
CROSS JOIN LATERAL (SELECT coalesce(l.holder IS NOT NULL AND l.held_until >= clock_timestamp(), false) AS yes) held
CROSS JOIN LATERAL (
    SELECT sum(greatest(h.last - r.value::bigint, 0)) AS messages
    FROM jsonb_each_text(s.positions) r
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(k.last_offset), 0) AS last
        FROM queen.partition_lookup k WHERE k.queue_id = r.key::uuid
    ) h
) behind
LEFT JOIN LATERAL (
    SELECT n.* FROM queen.pipeline_batches n WHERE n.name = p.name ORDER BY n.ended_at DESC LIMIT 1
) b ON true
WHERE p.wanted <> 'removed' AND ($1::text IS NULL OR p.name = $1::text)
  AND ($2::text[] IS NULL OR (p.reads IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM unnest(p.reads || p.writes) AS queue WHERE NOT queue LIKE ANY ($2::text[]))))
ORDER BY p.name LIMIT $3::bigint OFFSET $4::bigint
