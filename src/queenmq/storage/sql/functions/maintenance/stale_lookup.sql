-- What is wrong with partition_lookup, a row a problem; none is the healthy answer. Compares with queen.messages through the
-- index, one probe a partition. A push that commits meanwhile is seen whole or not at all, so it is never reported.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.stale_lookup()
RETURNS TABLE (partition_id uuid, queue_name text, partition_name text, problem text) LANGUAGE sql STABLE AS $$
    SELECT p.id, q.name, p.name, CASE
        WHEN l.partition_id IS NULL THEN 'the partition has no row'
        WHEN newest."offset" > l.last_offset THEN
            format('last offset is %s, the newest message has %s', l.last_offset, newest."offset")
        WHEN newest."offset" = l.last_offset AND newest.id IS DISTINCT FROM l.last_message_id THEN
            'last message id is not that of the newest message'
        WHEN oldest."offset" < l.first_offset THEN
            format('first offset is %s, the oldest message has %s', l.first_offset, oldest."offset")
        WHEN asleep.consumer_group IS NOT NULL THEN
            format('group %s sleeps although there is something unread', asleep.consumer_group)
        ELSE 'its row in partition_ages is missing, or says that its messages are younger than they are'
        END
    FROM queen.partitions p
    JOIN queen.queues q ON q.id = p.queue_id
    LEFT JOIN queen.partition_lookup l ON l.partition_id = p.id
    LEFT JOIN queen.partition_ages a ON a.partition_id = p.id
    LEFT JOIN LATERAL (
        SELECT m."offset", m.id FROM queen.messages m WHERE m.partition_id = p.id ORDER BY m."offset" DESC LIMIT 1
    ) newest ON true
    LEFT JOIN LATERAL (
        SELECT m."offset", m.created_at FROM queen.messages m WHERE m.partition_id = p.id ORDER BY m."offset" LIMIT 1
    ) oldest ON true
    LEFT JOIN LATERAL (
        SELECT c.consumer_group FROM queen.partition_consumers c
        WHERE c.partition_id = p.id AND c.ready_at IS NULL AND c.position < newest."offset"
        LIMIT 1
    ) asleep ON true
    WHERE l.partition_id IS NULL
       OR newest."offset" > l.last_offset
       OR (newest."offset" = l.last_offset AND newest.id IS DISTINCT FROM l.last_message_id)
       OR oldest."offset" < l.first_offset
       OR asleep.consumer_group IS NOT NULL
       OR a.partition_id IS NULL
       OR (oldest."offset" IS NOT NULL AND (a.oldest_at IS NULL OR a.oldest_at > oldest.created_at))
$$;
