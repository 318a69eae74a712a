-- partition_lookup with the names of the queues, and columns named as in the document that the table goes back to, so that queries written for
-- that run here: queen.partition_lookup_by_name instead of queen.partition_lookup. For people; no server reads it.
-- Of messages that were stored in one moment, the one with the highest id counts as the last: such queries compare (created_at, id).
CREATE VIEW queen.partition_lookup_by_name AS
SELECT l.partition_id AS id, q.name AS queue_name, l.partition_id, coalesce(m.id, l.last_message_id) AS last_message_id,
       l.last_message_at AS last_message_created_at, l.last_message_at AS updated_at
FROM queen.partition_lookup l
JOIN queen.queues q ON q.id = l.queue_id AND q.name IS NOT NULL
LEFT JOIN LATERAL (
    SELECT m.id FROM queen.messages m
    WHERE m.partition_id = l.partition_id AND m."offset" > l.last_offset - 10000 AND m.created_at = l.last_message_at
    ORDER BY m.id DESC LIMIT 1
) m ON true
WHERE l.last_message_at IS NOT NULL;
