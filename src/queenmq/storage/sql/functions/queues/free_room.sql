-- How many messages fit into a queue with maxSize, if p_wanted are to be added. The answer is exact when they do not fit, except
-- that a full queue of more than 1,000 partitions is counted again only every 50 us for each of them (5 s at 100,000): until then what was
-- read since the last count is not known, and the queue counts as full. Otherwise nothing is counted, and there may be more room.
-- Locks nothing more: the caller holds the queue's row (FOR NO KEY UPDATE), and adds what it stores to queue_sizes.
CREATE OR REPLACE FUNCTION queen.free_room(p_queue uuid, p_wanted bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_added   bigint;
    v_doubt   boolean;
    v_max     bigint;
    v_known   queen.queue_sizes;
    v_counted record;
BEGIN
    WITH taken AS (
        DELETE FROM queen.queue_size_changes WHERE queue_id = p_queue RETURNING added
    )
    SELECT coalesce(sum(added), 0), coalesce(bool_or(added IS NULL), false) INTO v_added, v_doubt FROM taken;
    SELECT max_size INTO v_max FROM queen.queues WHERE id = p_queue;
    SELECT * INTO v_known FROM queen.queue_sizes WHERE queue_id = p_queue;
    v_known.size := v_known.size + v_added;
    IF NOT v_doubt AND v_known.size IS NOT NULL AND (
        v_known.size + p_wanted <= v_max
        OR (v_known.partitions > 1000 AND clock_timestamp() BETWEEN v_known.counted_at
            AND v_known.counted_at + make_interval(secs => v_known.partitions * 0.00005))
    ) THEN
        IF v_added > 0 THEN
            UPDATE queen.queue_sizes SET size = v_known.size WHERE queue_id = p_queue;
        END IF;
        RETURN greatest(0, v_max - v_known.size);
    END IF;

    SELECT c.size, c.partitions INTO v_counted FROM queen.count_size(p_queue) c;
    INSERT INTO queen.queue_sizes (queue_id, size, partitions, counted_at)
    VALUES (p_queue, v_counted.size, v_counted.partitions, clock_timestamp())
    ON CONFLICT (queue_id) DO UPDATE
    SET size = excluded.size, partitions = excluded.partitions, counted_at = excluded.counted_at;
    RETURN greatest(0, v_max - v_counted.size);
END $$;
