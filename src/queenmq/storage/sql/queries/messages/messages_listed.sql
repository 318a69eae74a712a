-- The newest messages that match, with how far they have come; see queen.recent_messages for $1 to $7. $8: with their payloads,
-- of up to $9 bytes in all; further ones are left out. $10: only those that have these headers.
SELECT m.id, m.transaction_id, m.partition_id, q.name AS queue, p.name AS partition, q.namespace, q.task, q.priority,
       m.trace_id, m.producer_sub, m.headers, m.created_at, m.is_encrypted,
       CASE WHEN $8 AND r.upto <= $9 THEN m.payload END AS payload, $8 AND r.upto > $9 AS omitted, s.*
FROM (
    SELECT r.*, CASE WHEN $8 THEN sum(octet_length(m.payload)) OVER (ORDER BY r.i ROWS UNBOUNDED PRECEDING) END AS upto
    FROM queen.recent_messages($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY AS r (partition_id, "offset", i)
    CROSS JOIN LATERAL (
        SELECT m.payload FROM queen.messages m WHERE m.partition_id = r.partition_id AND m."offset" = r."offset"
          AND ($10::jsonb IS NULL OR m.headers @> $10) LIMIT 1
    ) m
) r
CROSS JOIN LATERAL (
    SELECT m.* FROM queen.messages m WHERE m.partition_id = r.partition_id AND m."offset" = r."offset" LIMIT 1
) m
CROSS JOIN LATERAL (SELECT p.* FROM queen.partitions p WHERE p.id = r.partition_id LIMIT 1) p
CROSS JOIN LATERAL (SELECT q.* FROM queen.queues q WHERE q.id = p.queue_id AND q.name IS NOT NULL LIMIT 1) q
CROSS JOIN LATERAL queen.message_state(m.partition_id, m."offset", m.transaction_id) s
ORDER BY r.i
