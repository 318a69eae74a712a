-- One bounded step over a queue ($1): the figures of up to $3 partitions after $2. One row a group, and one without a group for the
-- partitions themselves; `last` is the last partition seen, null if there was none. Of the partitions that are due longest
-- and of those written last, up to $4 each. Reads one message for each group that has something unread, a few more in queues with a delay
-- or ttl; locks nothing. A group that has begun the queue without being registered is behind in the other partitions, too.
WITH queue AS MATERIALIZED (
    SELECT q, q.name, q.delayed_processing_s + q.window_buffer_s + coalesce(q.ttl_s, 0) = 0 AND NOT q.dlq_after_max_retries AS simple
    FROM queen.queues q WHERE q.id = $1
), page AS MATERIALIZED (
    SELECT l.partition_id, l.first_offset, l.last_offset, l.last_message_at, l.holes,
           greatest(0, l.last_offset - l.first_offset + 1 - l.holes) AS stored
    FROM queen.partition_lookup l
    WHERE l.queue_id = $1 AND l.partition_id > $2
    ORDER BY l.partition_id LIMIT $3
), begun AS MATERIALIZED (
    SELECT g.name FROM queue, queen.groups_of(queue.name, 1000) g WHERE g.started AND NOT g.registered
), standing AS MATERIALIZED (
    SELECT page.partition_id, page.stored, c.consumer_group, c.attempts, c.total_consumed, c.last_consumed_at, c.leased,
           coalesce(s.unread, c.unread) AS unread, coalesce(s.due, c.unread) AS due,
           CASE WHEN s.unread IS NULL THEN oldest.created_at ELSE s.due_since END AS due_since, true AS started
    FROM queue CROSS JOIN page
    -- OFFSET 0 keeps the planner at one probe a partition, whatever it believes about the tables.
    CROSS JOIN LATERAL (
        SELECT c.consumer_group, c.position, c.done, c.attempts, c.total_consumed, c.last_consumed_at,
               least(page.stored, greatest(0, page.last_offset - greatest(page.first_offset - 1, c.position)
                                              - queen.count_offsets(c.done))) AS unread,
               CASE WHEN c.lease_expires_at > clock_timestamp() THEN queen.count_offsets(c.lease_offsets) END AS leased
        FROM queen.partition_consumers c WHERE c.partition_id = page.partition_id OFFSET 0
    ) c
    -- Where counting offsets is not enough. With OFFSET 0 the function is not called elsewhere.
    LEFT JOIN LATERAL (
        SELECT s.* FROM queen.describe_position(queue.q, page.partition_id, c.consumer_group, NULL, clock_timestamp()) s
        WHERE page.last_offset > c.position AND (NOT queue.simple OR page.holes > 0 OR c.done <> '{}') OFFSET 0
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT m.created_at FROM queen.messages m
        WHERE s.unread IS NULL AND c.unread > 0 AND m.partition_id = page.partition_id AND m."offset" > c.position
        ORDER BY m."offset" LIMIT 1
    ) oldest ON true
    UNION ALL
    SELECT page.partition_id, page.stored, begun.name, 0, 0, NULL, NULL, s.unread, s.due, s.due_since, false
    FROM queue CROSS JOIN begun CROSS JOIN page
    -- Named after the group is known, so that nothing is looked up where there is no such group.
    CROSS JOIN LATERAL (
        SELECT p.name FROM queen.partitions p WHERE p.id = page.partition_id AND begun.name IS NOT NULL LIMIT 1
    ) p
    CROSS JOIN LATERAL queen.describe_position(queue.q, page.partition_id, begun.name,
                                   queen.start_of(queue.name, p.name, begun.name, false, clock_timestamp()), clock_timestamp()) s
    WHERE page.stored > 0 AND NOT EXISTS (
        SELECT 1 FROM queen.partition_consumers c WHERE c.partition_id = page.partition_id AND c.consumer_group = begun.name)
), slowest AS (
    SELECT DISTINCT ON (partition_id) partition_id, unread, least(unread, coalesce(leased, 0)) AS leased
    FROM standing WHERE started ORDER BY partition_id, unread DESC, coalesce(leased, 0)
)
SELECT NULL AS consumer_group, count(*) AS partitions, coalesce(sum(page.stored), 0)::bigint AS total,
       coalesce(sum(coalesce(s.unread - s.leased, page.stored)), 0)::bigint AS pending,
       coalesce(sum(s.leased), 0)::bigint AS processing,
       (SELECT count(*) FROM standing WHERE attempts > 0) AS failed,
       NULL::bigint AS lagging, NULL::bigint AS unread, NULL::bigint AS leases, NULL::bigint AS consumed,
       max(page.last_message_at) AS newest_at, NULL::timestamptz AS last_consumed_at,
       (array_agg(page.partition_id ORDER BY page.last_message_at DESC)
            FILTER (WHERE page.last_message_at IS NOT NULL))[1:$4] AS chosen,
       (array_agg(page.last_message_at ORDER BY page.last_message_at DESC)
            FILTER (WHERE page.last_message_at IS NOT NULL))[1:$4] AS chosen_at,
       (SELECT partition_id FROM page ORDER BY partition_id DESC LIMIT 1) AS last
FROM page LEFT JOIN slowest s USING (partition_id)
UNION ALL
SELECT consumer_group, count(*) FILTER (WHERE started), NULL, coalesce(sum(due), 0)::bigint, coalesce(sum(leased), 0)::bigint, NULL,
       count(*) FILTER (WHERE due > 0), coalesce(sum(unread), 0)::bigint, count(*) FILTER (WHERE leased > 0), sum(total_consumed)::bigint,
       min(due_since), max(last_consumed_at),
       (array_agg(partition_id ORDER BY due_since) FILTER (WHERE due_since IS NOT NULL))[1:$4],
       (array_agg(due_since ORDER BY due_since) FILTER (WHERE due_since IS NOT NULL))[1:$4],
       NULL
FROM standing GROUP BY consumer_group
