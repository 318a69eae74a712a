-- One bounded step over a queue ($1): the figures of up to $3 partitions after $2. One row a group, and one without a group for the
-- partitions themselves; `last` is the last partition seen, null if there was none. Of the partitions that wait longest
-- and of those written last, up to $4 each. Reads one message for each group that has something unread; locks nothing.
WITH page AS MATERIALIZED (
    SELECT l.partition_id, l.first_offset, l.last_offset, l.last_message_at,
           greatest(0, l.last_offset - l.first_offset + 1 - l.holes) AS stored
    FROM queen.partition_lookup l
    WHERE l.queue_id = $1 AND l.partition_id > $2
    ORDER BY l.partition_id LIMIT $3
), standing AS MATERIALIZED (
    SELECT page.partition_id, page.stored, c.*, oldest.created_at AS oldest_at
    FROM page
    -- OFFSET 0 keeps the planner at one probe a partition, whatever it believes about the tables.
    CROSS JOIN LATERAL (
        SELECT c.consumer_group, c.position, c.done, c.attempts, c.total_consumed, c.last_consumed_at,
               least(page.stored, greatest(0, page.last_offset - greatest(page.first_offset - 1, c.position)
                                              - queen.measure(c.done))) AS unread,
               CASE WHEN c.lease_expires_at > clock_timestamp() THEN queen.measure(c.lease_offsets) END AS leased
        FROM queen.partition_consumers c WHERE c.partition_id = page.partition_id OFFSET 0
    ) c
    LEFT JOIN LATERAL (
        SELECT m.created_at FROM queen.messages m
        WHERE c.unread > 0 AND m.partition_id = page.partition_id AND m."offset" > c.position AND NOT c.done @> m."offset"
        ORDER BY m."offset" LIMIT 1
    ) oldest ON true
), slowest AS (
    SELECT DISTINCT ON (partition_id) partition_id, unread, least(unread, coalesce(leased, 0)) AS leased
    FROM standing ORDER BY partition_id, unread DESC, coalesce(leased, 0)
)
SELECT NULL AS consumer_group, count(*) AS partitions, coalesce(sum(page.stored), 0)::bigint AS total,
       coalesce(sum(coalesce(s.unread - s.leased, page.stored)), 0)::bigint AS pending,
       coalesce(sum(s.leased), 0)::bigint AS processing,
       (SELECT count(*) FROM standing WHERE attempts > 0) AS failed,
       NULL::bigint AS lagging, NULL::bigint AS leases, NULL::bigint AS consumed,
       max(page.last_message_at) AS newest_at, NULL::timestamptz AS last_consumed_at,
       (array_agg(page.partition_id ORDER BY page.last_message_at DESC)
            FILTER (WHERE page.last_message_at IS NOT NULL))[1:$4] AS chosen,
       (array_agg(page.last_message_at ORDER BY page.last_message_at DESC)
            FILTER (WHERE page.last_message_at IS NOT NULL))[1:$4] AS chosen_at,
       (SELECT partition_id FROM page ORDER BY partition_id DESC LIMIT 1) AS last
FROM page LEFT JOIN slowest s USING (partition_id)
UNION ALL
SELECT consumer_group, count(*), NULL, coalesce(sum(unread), 0)::bigint, coalesce(sum(leased), 0)::bigint, NULL,
       count(*) FILTER (WHERE unread > 0), count(*) FILTER (WHERE leased > 0), sum(total_consumed)::bigint,
       min(oldest_at), max(last_consumed_at),
       (array_agg(partition_id ORDER BY oldest_at) FILTER (WHERE oldest_at IS NOT NULL))[1:$4],
       (array_agg(oldest_at ORDER BY oldest_at) FILTER (WHERE oldest_at IS NOT NULL))[1:$4],
       NULL
FROM standing GROUP BY consumer_group
