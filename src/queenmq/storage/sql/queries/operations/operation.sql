SELECT o.id, o.kind, o.queue_name, o.partition_name, o.priority, o.subject,
       queen.shown_status(o.status, o.next_attempt_at) AS status, o.attempts, o.error, o.result::text AS result,
       false AS omitted,
       o.parameters ->> 'group' AS "group", (o.parameters ->> 'at')::timestamptz AS moment,
       (o.cursor ->> 'position')::bigint AS position, (o.cursor ->> 'deleted')::bigint AS deleted,
       (o.cursor ->> 'dropped')::bigint AS dropped,
       o.created_at, o.claimed_at, o.finished_at, o.done, o.total, queen.unit(o.kind) AS unit,
       CASE WHEN o.next_attempt_at < 'infinity' AND o.status = 'pending' THEN o.next_attempt_at END AS next_attempt_at,
       CASE WHEN o.kind = 'push' THEN coalesce(o.items, jsonb_array_length(o.result)) END AS items,
       extract(epoch FROM coalesce(o.finished_at, clock_timestamp()) - o.created_at)::float8 AS latency_s,
       (SELECT count(*) FROM queen.operation_queue b
        WHERE o.status IN ('pending', 'processing') AND b.status IN ('pending', 'processing')
          AND (b.kind = 'push') = (o.kind = 'push') AND (o.kind = 'push' OR b.queue_id = o.queue_id)
          AND (b.priority, b.number) < (o.priority, o.number)) AS before
FROM queen.operation_queue o WHERE o.id = $1
