-- Of messages in an unpublished file of the queue $1, which was written at $2 ($3 partition ids, $4 names, $5 offsets, $6 message
-- ids): those that are not stored, although nothing has deleted them. A file from before the queue was made tells nothing.
SELECT t.name, t."offset"
FROM queen.queues q
CROSS JOIN unnest($3::uuid[], $4::text[], $5::bigint[], $6::uuid[]) AS t (partition_id, name, "offset", id)
LEFT JOIN queen.partition_lookup l ON l.partition_id = t.partition_id
WHERE q.name = $1::text AND q.created_at <= $2::timestamptz
  AND NOT EXISTS (
      SELECT 1 FROM queen.messages m WHERE m.partition_id = t.partition_id AND m."offset" = t."offset" AND m.id = t.id)
  AND CASE WHEN l.partition_id IS NULL
      THEN NOT EXISTS (SELECT 1 FROM queen.dropped_partitions d WHERE d.queue_id = q.id AND d.name = t.name)
      ELSE t."offset" >= l.first_offset AND NOT EXISTS (
          SELECT 1 FROM queen.deleted_offsets d
          WHERE d.partition_id = t.partition_id AND t."offset" BETWEEN d.first_offset AND d.last_offset)
      END
ORDER BY 1, 2
