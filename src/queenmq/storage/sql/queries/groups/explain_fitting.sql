-- Of the next unread messages ($4 at most) of a group ($2) in partitions ($3) of a queue ($1, its id): how many were examined, and how many of them
-- its filter lets through.
SELECT c.partition_id, n.examined, n.fitting
FROM queen.group_filters f
JOIN queen.partition_consumers c ON c.partition_id = ANY ($3::uuid[]) AND c.consumer_group = f.consumer_group
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS examined,
           (count(*) FILTER (WHERE queen.matches(f, x.headers, x.is_encrypted, x.payload)))::integer AS fitting
    FROM (
        SELECT m.headers, m.is_encrypted, m.payload FROM queen.messages m
        WHERE m.partition_id = c.partition_id AND m."offset" > c.position AND NOT c.done @> m."offset" ORDER BY m."offset" LIMIT $4
    ) x
) n
WHERE f.queue_id = $1 AND f.consumer_group = $2
