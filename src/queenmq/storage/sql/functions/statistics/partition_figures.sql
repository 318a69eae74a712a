-- The figures of these partitions as they are now; what each column means is said at queen.queue_statistics. Reads two messages
-- a partition at most; locks nothing. A group that has begun the queue without being registered is behind in the other partitions, too.
CREATE OR REPLACE FUNCTION queen.partition_figures(p_partitions uuid[])
RETURNS TABLE (partition_id uuid, total bigint, pending bigint, processing bigint, completed bigint, failed bigint,
               dead_letters bigint, consumed bigint, leases bigint, last_activity timestamptz,
               oldest_at timestamptz, newest_at timestamptz)
LANGUAGE sql STABLE AS $$
    WITH begun AS MATERIALIZED (
        SELECT q.id AS queue_id, q.name AS queue, g.name
        FROM (SELECT DISTINCT l.queue_id FROM queen.partition_lookup l WHERE l.partition_id = ANY (p_partitions)) x
        JOIN queen.queues q ON q.id = x.queue_id
        CROSS JOIN LATERAL queen.groups_of(q.name, 1000) g
        WHERE g.started AND NOT g.registered
    )
    SELECT l.partition_id, l.stored, coalesce(s.unread - s.leased, l.stored), coalesce(s.leased, 0),
           coalesce(l.stored - s.unread, 0), coalesce(g.failed, 0), coalesce(d.letters, 0)::bigint,
           coalesce(g.consumed, 0)::bigint, coalesce(g.leases, 0),
           greatest(l.last_message_at, g.last_consumed_at), o.created_at,
           CASE WHEN l.stored > 0 THEN l.last_message_at END
    FROM unnest(p_partitions) WITH ORDINALITY AS t (id, i)
    -- LIMIT and aggregates keep the planner at one probe a partition, whatever it believes about the tables.
    CROSS JOIN LATERAL (
        SELECT l.*, greatest(0, l.last_offset - l.first_offset + 1 - l.holes) AS stored
        FROM queen.partition_lookup l WHERE l.partition_id = t.id LIMIT 1
    ) l
    LEFT JOIN LATERAL (
        SELECT x.unread, least(x.unread, x.leased) AS leased FROM (
            SELECT least(l.stored, greatest(0, l.last_offset - greatest(l.first_offset - 1, c.position)
                                               - queen.count_offsets(c.done))) AS unread,
                   CASE WHEN c.lease_expires_at > clock_timestamp() THEN queen.count_offsets(c.lease_offsets) ELSE 0 END AS leased
            FROM queen.partition_consumers c WHERE c.partition_id = t.id
            UNION ALL
            SELECT least(l.stored, l.last_offset - greatest(
                       l.first_offset - 1, CASE WHEN b.since IS NULL THEN 0 ELSE queen.offset_before(t.id, b.since) END)), 0
            FROM (
                SELECT queen.start_of(begun.queue, p.name, begun.name, false, clock_timestamp()) AS since
                FROM begun JOIN queen.partitions p ON p.id = t.id
                WHERE begun.queue_id = l.queue_id AND l.stored > 0 AND NOT EXISTS (
                    SELECT 1 FROM queen.partition_consumers c WHERE c.partition_id = t.id AND c.consumer_group = begun.name)
            ) b
        ) x ORDER BY x.unread DESC, x.leased LIMIT 1
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE c.attempts > 0) AS failed, sum(c.total_consumed) AS consumed,
               max(c.last_consumed_at) AS last_consumed_at,
               count(*) FILTER (WHERE c.lease_expires_at > clock_timestamp()) AS leases
        FROM queen.partition_consumers c WHERE c.partition_id = t.id
    ) g ON true
    LEFT JOIN LATERAL (
        SELECT sum(d.letters) AS letters FROM queen.dead_letter_counts d WHERE d.partition_id = t.id
    ) d ON true
    LEFT JOIN LATERAL (
        SELECT m.created_at FROM queen.messages m
        WHERE m.partition_id = t.id AND m."offset" >= l.first_offset ORDER BY m."offset" LIMIT 1
    ) o ON true
    ORDER BY t.i
$$;
