-- Messages of partitions from an offset or a moment on, by offset: for the entries $1 (queue) and $2 (partition), from offset $3 or, where
-- that is null, from moment $4. At most $5 messages of an entry, and as many as fit into $6 bytes of payload; of all entries together, in
-- their order, as many as fit into $7 bytes. The first message of an entry comes however large it is, unless others have used up $7; the
-- very first comes in any case.
-- A row for each message, or one without a message for an entry that has none; partition_id is null if there is no such partition.
WITH entries AS MATERIALIZED (
    SELECT t.i, p.id AS partition_id, p.first_offset, p.last_offset, t."limit", t.bytes,
           CASE WHEN t.start IS NULL THEN queen.offset_before(p.id, t.since) + 1 ELSE greatest(t.start, p.first_offset) END AS start
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::integer[], $6::bigint[])
         WITH ORDINALITY AS t (queue, partition, start, since, "limit", bytes, i)
    LEFT JOIN LATERAL (
        SELECT p.id, l.first_offset, l.last_offset
        FROM queen.queues q
        JOIN queen.partitions p ON p.queue_id = q.id AND p.name = t.partition
        JOIN queen.partition_lookup l ON l.partition_id = p.id
        WHERE q.name = t.queue LIMIT 1
    ) p ON true
), sized AS MATERIALIZED (
    SELECT e.i, m."offset", m.size, row_number() OVER each AS n, sum(m.size) OVER each AS upto, e.bytes
    FROM entries e
    CROSS JOIN LATERAL (
        SELECT m."offset", octet_length(m.payload) + coalesce(octet_length(m.headers::text), 0) AS size FROM queen.messages m
        WHERE m.partition_id = e.partition_id AND m."offset" >= e.start ORDER BY m."offset" LIMIT e."limit"
    ) m
    WINDOW each AS (PARTITION BY e.i ORDER BY m."offset")
), fitting AS MATERIALIZED (
    SELECT s.i, s."offset", row_number() OVER every AS n, sum(s.size) OVER every AS upto
    FROM sized s WHERE s.n = 1 OR s.upto <= s.bytes
    WINDOW every AS (ORDER BY s.i, s."offset")
)
SELECT e.i::integer AS entry, e.partition_id, e.first_offset, e.last_offset, e.start,
       m."offset", m.id, m.transaction_id, m.trace_id, m.producer_sub, m.created_at, m.is_encrypted, m.payload, m.headers
FROM entries e
LEFT JOIN LATERAL (
    SELECT m.* FROM fitting f
    CROSS JOIN LATERAL (
        SELECT m.* FROM queen.messages m WHERE m.partition_id = e.partition_id AND m."offset" = f."offset" LIMIT 1
    ) m
    WHERE f.i = e.i AND (f.n = 1 OR f.upto <= $7::bigint)
) m ON true
ORDER BY e.i, m."offset"
