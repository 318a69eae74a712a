-- One step through all messages, in the order of partition and offset: up to $3 messages after offset $2 of partition $1. Says how many
-- it has examined, up to which one, and which of them are encrypted and do not begin with $4: other keys, or bound to no message.
WITH seen AS MATERIALIZED (
    SELECT m.partition_id, m."offset", octet_length(m.payload) AS size,
           CASE WHEN m.is_encrypted THEN substring(m.payload FROM 1 FOR octet_length($4::bytea)) <> $4::bytea ELSE false END AS waits
    FROM queen.messages m WHERE (m.partition_id, m."offset") > ($1::uuid, $2::bigint)
    ORDER BY m.partition_id, m."offset" LIMIT $3
)
SELECT count(*) AS examined, (array_agg(partition_id ORDER BY partition_id DESC, "offset" DESC))[1] AS last_partition,
       (array_agg("offset" ORDER BY partition_id DESC, "offset" DESC))[1] AS last_offset,
       coalesce(array_agg(partition_id ORDER BY partition_id, "offset") FILTER (WHERE waits), '{}') AS partition_ids,
       coalesce(array_agg("offset" ORDER BY partition_id, "offset") FILTER (WHERE waits), '{}') AS offsets,
       coalesce(array_agg(size ORDER BY partition_id, "offset") FILTER (WHERE waits), '{}') AS sizes
FROM seen
