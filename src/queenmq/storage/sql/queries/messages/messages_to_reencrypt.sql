-- One step through all messages, in the order of partition and offset: up to $3 messages after offset $2 of partition $1. Says how many
-- it has examined, up to which one, and which of them are encrypted and do not begin with $4: other keys, or bound to no message.
-- `letters` says whether a dead letter of a partition that this step has come to the end of is such, too. When it is redriven it becomes a message
-- behind the last one that this step has seen: that neither is there at one and the same time means that there is none in the partition.
WITH seen AS MATERIALIZED (
    SELECT m.partition_id, m."offset", octet_length(m.payload) AS size,
           CASE WHEN m.is_encrypted THEN substring(m.payload FROM 1 FOR octet_length($4::bytea)) <> $4::bytea ELSE false END AS waits
    FROM queen.messages m WHERE (m.partition_id, m."offset") > ($1::uuid, $2::bigint)
    ORDER BY m.partition_id, m."offset" LIMIT $3
), step AS MATERIALIZED (
    SELECT count(*) AS examined, (array_agg(partition_id ORDER BY partition_id DESC, "offset" DESC))[1] AS last_partition,
           (array_agg("offset" ORDER BY partition_id DESC, "offset" DESC))[1] AS last_offset,
           coalesce(array_agg(partition_id ORDER BY partition_id, "offset") FILTER (WHERE waits), '{}') AS partition_ids,
           coalesce(array_agg("offset" ORDER BY partition_id, "offset") FILTER (WHERE waits), '{}') AS offsets,
           coalesce(array_agg(size ORDER BY partition_id, "offset") FILTER (WHERE waits), '{}') AS sizes
    FROM seen
)
SELECT step.*, EXISTS (
    SELECT 1 FROM queen.dead_letter_queue d JOIN queen.queues q ON q.id = d.queue_id AND q.name IS NOT NULL
    WHERE d.partition_id >= $1::uuid AND d.partition_id < coalesce(step.last_partition, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      AND d.is_encrypted AND substring(d.payload FROM 1 FOR octet_length($4::bytea)) <> $4::bytea) AS letters
FROM step
