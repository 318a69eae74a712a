-- A page of dead letters, newest failure first: of a queue ($1), a group ($2), partitions of a name ($3), between $4 and $5, with
-- a text in the error ($9), with errors of a fingerprint ($10), each if given.
-- Payloads and errors of up to $8 bytes in all; further ones are left out, or cut.
SELECT d.message_id, d.transaction_id, d.partition_id, d.queue, d.partition_name, d.consumer_group, d.retry_count,
       CASE WHEN d.upto <= $8 THEN d.error_message ELSE left(d.error_message, 1000) END AS error_message,
       CASE WHEN d.upto <= $8 THEN d.payload END AS payload, d.upto > $8 AS omitted,
       d.is_encrypted, d.producer_sub, d.created_at, d.failed_at, d.headers
FROM (
SELECT d.*,
       sum(octet_length(d.payload) + coalesce(octet_length(d.headers::text), 0) + coalesce(octet_length(d.error_message), 0))
           OVER (ORDER BY d.failed_at DESC, d.id ROWS UNBOUNDED PRECEDING) AS upto
FROM (
SELECT d.*, q.name AS queue FROM (
    -- Two branches, so that each can follow its index.
    (SELECT d.* FROM queen.dead_letter_queue d
     WHERE $1::text IS NULL AND ($2::text IS NULL OR d.consumer_group = $2) AND ($3::text IS NULL OR d.partition_name = $3)
       AND ($4::timestamptz IS NULL OR d.failed_at >= $4) AND ($5::timestamptz IS NULL OR d.failed_at <= $5)
       AND ($9::text IS NULL OR strpos(lower(d.error_message), lower($9)) > 0)
       AND ($10::text IS NULL OR queen.fingerprint(d.error_message) = $10)
     ORDER BY d.failed_at DESC, d.id LIMIT $6::bigint + $7::bigint)
    UNION ALL
    (SELECT d.* FROM queen.dead_letter_queue d
     WHERE d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1)
       AND ($2::text IS NULL OR d.consumer_group = $2) AND ($3::text IS NULL OR d.partition_name = $3)
       AND ($4::timestamptz IS NULL OR d.failed_at >= $4) AND ($5::timestamptz IS NULL OR d.failed_at <= $5)
       AND ($9::text IS NULL OR strpos(lower(d.error_message), lower($9)) > 0)
       AND ($10::text IS NULL OR queen.fingerprint(d.error_message) = $10)
     ORDER BY d.failed_at DESC, d.id LIMIT $6::bigint + $7::bigint)
) d
JOIN queen.queues q ON q.id = d.queue_id AND q.name IS NOT NULL
ORDER BY d.failed_at DESC, d.id
LIMIT $6 OFFSET $7
) d
) d
ORDER BY d.failed_at DESC, d.id
