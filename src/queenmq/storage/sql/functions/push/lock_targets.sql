-- Find the partitions that messages are to be written to, make those that are missing, and lock their heads. queen.push and queen.promote
-- both begin with it.
-- p_queues/p_partitions name the targets, each once. p_known has the ids of their partitions if the caller believes to know all of them,
-- else null: what is not true any more is looked up. p_limits is false for messages that count in the size of their queues already.
-- Returns, in the order of the targets, the partition ids and the last offset and its time of each; then the ids of the queues with
-- maxSize, and the names of those that demand encryption, each null for none.
-- Raises lock_not_available if a queue is deleted each time that it was made.
-- Locks, in this order: missing queues and partitions (queen.ensure_partitions); with p_limits, queues with maxSize by id; rows of
-- partition_lookup by partition.
CREATE OR REPLACE FUNCTION queen.lock_targets(
    p_queues text[], p_partitions text[], p_known uuid[], p_limits boolean,
    OUT partition_ids uuid[], OUT last_offsets bigint[], OUT last_times timestamptz[], OUT limited uuid[], OUT encrypted text[])
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_owners uuid[];
BEGIN
    FOR attempt IN 1..10 LOOP
        IF attempt = 1 AND p_known IS NOT NULL THEN
            partition_ids := p_known;
            SELECT array_agg(q.id), array_agg(q.id) FILTER (WHERE q.max_size > 0 AND p_limits),
                   array_agg(q.name) FILTER (WHERE q.encryption_enabled)
            INTO v_owners, limited, encrypted
            FROM queen.queues q WHERE q.name = ANY (p_queues);
        ELSE
            SELECT array_agg(p.id ORDER BY t.i), array_agg(DISTINCT q.id),
                   array_agg(DISTINCT q.id) FILTER (WHERE q.max_size > 0 AND p_limits),
                   array_agg(DISTINCT q.name) FILTER (WHERE q.encryption_enabled)
            INTO partition_ids, v_owners, limited, encrypted
            FROM unnest(p_queues, p_partitions) WITH ORDINALITY AS t (queue, partition, i)
            LEFT JOIN queen.queues q ON q.name = t.queue
            -- LIMIT keeps the planner at one probe a target, whatever it believes about the tables.
            LEFT JOIN LATERAL (
                SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.partition LIMIT 1
            ) p ON true;
        END IF;

        IF array_position(partition_ids, NULL) IS NOT NULL THEN
            PERFORM queen.ensure_partitions(p_queues, p_partitions);
            CONTINUE;
        END IF;
        IF limited IS NOT NULL THEN
            PERFORM 1 FROM queen.queues WHERE id = ANY (limited) ORDER BY id FOR NO KEY UPDATE;
        END IF;
        SELECT array_agg(l.last_offset ORDER BY t.i), array_agg(l.last_message_at ORDER BY t.i)
        INTO last_offsets, last_times
        FROM (SELECT id, i FROM unnest(partition_ids) WITH ORDINALITY AS u (id, i) ORDER BY id) t
        -- LIMIT, as above: a join would be planned for few targets, and be quadratic for many. CASE keeps the planner from the
        -- index by queue, which does not have the newest version of a head first.
        CROSS JOIN LATERAL (
            SELECT h.last_offset, h.last_message_at FROM queen.partition_lookup h
            WHERE h.partition_id = t.id AND CASE WHEN h.queue_id = ANY (v_owners) THEN true END
            ORDER BY h.generation DESC LIMIT 1 FOR NO KEY UPDATE
        ) l;
        -- Fewer heads than targets: a queue was deleted since its partitions were known, or while this call waited. It is made
        -- anew. Of a large one the old heads may still be there, but they belong to a queue that has no name any more.
        IF cardinality(last_offsets) = cardinality(partition_ids) THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE lock_not_available USING MESSAGE = 'the queue is being deleted again and again';
END $$;
