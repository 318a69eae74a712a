-- Operations in a status ($1), of a queue ($2), of a kind ($3), of queues that fit the patterns $7, of a partition ($8), newest first. Results and errors of up to $6 bytes in all;
-- further ones are left out, or cut. Results are stored compressed, and what is
-- answered is about twice what is stored, so their size is an estimate.
SELECT o.id, o.kind, o.queue_name, o.partition_name, o.priority, o.subject,
       queen.shown_status(o.status, o.next_attempt_at) AS status, o.attempts,
       CASE WHEN o.upto <= $6 THEN o.error ELSE left(o.error, 1000) END AS error,
       CASE WHEN o.upto <= $6 THEN o.result END::text AS result, o.upto > $6 AND o.result IS NOT NULL AS omitted,
       o.parameters ->> 'group' AS "group", (o.parameters ->> 'at')::timestamptz AS moment,
       (o.cursor ->> 'position')::bigint AS position, (o.cursor ->> 'deleted')::bigint AS deleted,
       (o.cursor ->> 'dropped')::bigint AS dropped,
       o.created_at, o.claimed_at, o.finished_at, o.done, o.total, queen.unit(o.kind) AS unit,
       CASE WHEN o.next_attempt_at < 'infinity' AND o.status = 'pending' THEN o.next_attempt_at END AS next_attempt_at,
       CASE WHEN o.kind = 'push' THEN coalesce(o.items, jsonb_array_length(o.result)) END AS items,
       extract(epoch FROM coalesce(o.finished_at, clock_timestamp()) - o.created_at)::float8 AS latency_s,
       w.before
FROM (
SELECT o.*, sum(coalesce(pg_column_size(o.result), 0) * 16 + coalesce(octet_length(o.error), 0))
                OVER (ORDER BY o.number DESC ROWS UNBOUNDED PRECEDING) AS upto
FROM (
SELECT o.* FROM queen.operation_queue o
WHERE ($1::text IS NULL OR queen.shown_status(o.status, o.next_attempt_at) = $1) AND ($2::text IS NULL OR o.queue_name = $2) AND ($3::text IS NULL OR o.kind = $3)
  AND ($7::text[] IS NULL OR o.queue_name LIKE ANY ($7)) AND ($8::text IS NULL OR o.partition_name = $8)
ORDER BY o.number DESC LIMIT $4 OFFSET $5
) o
) o
LEFT JOIN (
    SELECT b.id, row_number() OVER (
               PARTITION BY b.kind = 'push', CASE WHEN b.kind <> 'push' THEN b.queue_id END ORDER BY b.priority, b.number) - 1 AS before
    FROM queen.operation_queue b WHERE b.status IN ('pending', 'processing')
) w ON w.id = o.id
ORDER BY o.number DESC
