-- Which rows would a call have to wait for? Indexes into the arrays, or null for none:
--   p_queues/p_partitions  targets of pushes: their heads, groups that a message wakes, and the queue itself if it has a size
--                          limit or the partition is still to be made;
--   p_partition/p_group    positions of groups;
--   p_lease                leases: all of their rows;
--   p_subscribed           queues that a group subscribes to.
-- With p_tables, if there are none: whether another session holds a lock on one of the tables that keeps writers out.
-- With each comes a mark of its holder (the number of a transaction, as far as it is known): a row with another mark than before is
-- not held all the time, but in great demand.
-- What is not visible yet, because an open transaction is just making it, is not found.
-- Locks what is free, without ever waiting; call it in a transaction of its own, which ends with it. Nothing is lost if that does
-- not reach the disk.
CREATE OR REPLACE FUNCTION queen.find_locked(
    p_queues text[], p_partitions text[], p_partition uuid[], p_group text[], p_lease uuid[], p_subscribed text[], p_tables boolean,
    OUT heads integer[], OUT positions integer[], OUT leases integer[], OUT queues integer[],
    OUT head_marks text[], OUT position_marks text[], OUT lease_marks text[], OUT queue_marks text[], OUT is_table boolean)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '10', true);
    IF cardinality(p_queues) > 0 THEN
        WITH target AS MATERIALIZED (
            SELECT t.i, q.id AS queue, p.id AS part, p.id IS NULL AS missing, q.max_size > 0 AS limited
            FROM unnest(p_queues, p_partitions) WITH ORDINALITY AS t (queue, partition, i)
            LEFT JOIN queen.queues q ON q.name = t.queue
            LEFT JOIN LATERAL (
                SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.partition LIMIT 1
            ) p ON true
        ), free AS MATERIALIZED (
            SELECT l.partition_id FROM queen.partition_lookup l WHERE l.partition_id IN (SELECT part FROM target)
            FOR NO KEY UPDATE SKIP LOCKED
        ), free_asleep AS MATERIALIZED (
            SELECT c.partition_id, c.consumer_group FROM queen.partition_consumers c
            WHERE c.partition_id IN (SELECT part FROM target) AND c.ready_at IS NULL
            FOR NO KEY UPDATE SKIP LOCKED
        ), free_limited AS MATERIALIZED (
            SELECT q.id FROM queen.queues q WHERE q.id IN (SELECT queue FROM target WHERE limited) FOR NO KEY UPDATE SKIP LOCKED
        ), free_owner AS MATERIALIZED (
            SELECT q.id FROM queen.queues q WHERE q.id IN (SELECT queue FROM target WHERE missing) FOR KEY SHARE SKIP LOCKED
        ), found AS (
            -- NOT IN and no joins: it is hashed, however few rows the planner expects.
            SELECT t.i, l.xmax::text AS mark FROM target t JOIN queen.partition_lookup l ON l.partition_id = t.part
            WHERE t.part NOT IN (SELECT partition_id FROM free)
            UNION ALL
            SELECT t.i, c.xmax::text FROM target t JOIN queen.partition_consumers c ON c.partition_id = t.part AND c.ready_at IS NULL
            WHERE (c.partition_id, c.consumer_group) NOT IN (SELECT partition_id, consumer_group FROM free_asleep)
            UNION ALL
            SELECT t.i, q.xmax::text FROM target t JOIN queen.queues q ON q.id = t.queue
            WHERE (t.limited AND t.queue NOT IN (SELECT id FROM free_limited))
               OR (t.missing AND t.queue NOT IN (SELECT id FROM free_owner))
        )
        SELECT array_agg(x.i::integer), array_agg(x.mark) INTO heads, head_marks
        FROM (SELECT i, min(mark) AS mark FROM found GROUP BY i) x;
    END IF;
    IF cardinality(p_partition) > 0 THEN
        WITH wanted AS MATERIALIZED (
            SELECT t.i, t.part, t.grp COLLATE "C" AS grp FROM unnest(p_partition, p_group) WITH ORDINALITY AS t (part, grp, i)
        ), free AS MATERIALIZED (
            SELECT c.partition_id, c.consumer_group FROM queen.partition_consumers c
            WHERE (c.partition_id, c.consumer_group) IN (SELECT part, grp FROM wanted)
            FOR NO KEY UPDATE SKIP LOCKED
        )
        SELECT array_agg(w.i::integer), array_agg(c.xmax::text) INTO positions, position_marks FROM wanted w
        JOIN queen.partition_consumers c ON c.partition_id = w.part AND c.consumer_group = w.grp
        WHERE (c.partition_id, c.consumer_group) NOT IN (SELECT partition_id, consumer_group FROM free);
    END IF;
    IF cardinality(p_lease) > 0 THEN
        WITH free AS MATERIALIZED (
            SELECT c.partition_id, c.consumer_group FROM queen.partition_consumers c WHERE c.lease_id = ANY (p_lease)
            FOR NO KEY UPDATE SKIP LOCKED
        )
        SELECT array_agg(x.i::integer), array_agg(x.mark) INTO leases, lease_marks FROM (
            SELECT t.i, min(c.xmax::text) AS mark FROM unnest(p_lease) WITH ORDINALITY AS t (lease, i)
            JOIN queen.partition_consumers c ON c.lease_id = t.lease
            WHERE (c.partition_id, c.consumer_group) NOT IN (SELECT partition_id, consumer_group FROM free)
            GROUP BY t.i
        ) x;
    END IF;
    IF cardinality(p_subscribed) > 0 THEN
        WITH free AS MATERIALIZED (
            SELECT q.id FROM queen.queues q WHERE q.name = ANY (p_subscribed) FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(t.i::integer), array_agg(q.xmax::text) INTO queues, queue_marks FROM unnest(p_subscribed) WITH ORDINALITY AS t (queue, i)
        JOIN queen.queues q ON q.name = t.queue
        WHERE q.id NOT IN (SELECT id FROM free);
    END IF;
    is_table := p_tables AND heads IS NULL AND positions IS NULL AND leases IS NULL AND queues IS NULL AND EXISTS (
        SELECT 1 FROM pg_locks k JOIN pg_class c ON c.oid = k.relation
        WHERE k.locktype = 'relation' AND k.granted AND k.pid IS DISTINCT FROM pg_backend_pid()
          AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
          AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND c.relnamespace = 'queen'::regnamespace AND c.relkind IN ('r', 'p'));
END $$;
