SELECT o.id, o.kind, o.queue_name, o.partition_name, o.priority, o.status, o.attempts, o.error, o.result::text AS result,
       o.created_at, o.claimed_at, o.finished_at, o.done, o.total, queen.unit(o.kind) AS unit,
       CASE WHEN o.kind = 'push' THEN coalesce(cardinality(o.message_ids), jsonb_array_length(o.result)) END AS items,
       NULL::bigint AS before
FROM queen.operation_queue o
WHERE ($1::text IS NULL OR o.status = $1) AND ($2::text IS NULL OR o.queue_name = $2) AND ($3::text IS NULL OR o.kind = $3)
ORDER BY o.number DESC LIMIT $4 OFFSET $5
