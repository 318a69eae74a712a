-- One bounded step of removing what is left of a deleted queue: about p_limit messages and partitions, one partition after the other and
-- large ones in portions; then dead letters and traces, and the queue's row at the end.
-- Pushes and acks that were under way when the queue was deleted are waited for, and what they wrote goes, too.
-- Locks: heads FOR UPDATE by partition, then rows of partition_consumers by (partition, group).
CREATE OR REPLACE FUNCTION queen.remove_queue(p_queue uuid, p_limit integer, OUT done bigint, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_small uuid[];
    v_large queen.partition_lookup;
    v_rows  bigint;
BEGIN
    done := 0;
    finished := false;
    SELECT array_agg(x.partition_id) INTO v_small FROM (
        SELECT l.partition_id, sum(greatest(0, l.last_offset - l.first_offset + 1) + 1) OVER (ORDER BY l.partition_id) AS so_far
        FROM (SELECT * FROM queen.partition_lookup WHERE queue_id = p_queue ORDER BY partition_id LIMIT p_limit) l
    ) x WHERE x.so_far <= p_limit;
    IF v_small IS NOT NULL THEN
        PERFORM 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_small) ORDER BY partition_id FOR UPDATE;
        PERFORM 1 FROM queen.partition_consumers WHERE partition_id = ANY (v_small)
        ORDER BY partition_id, consumer_group FOR UPDATE;
        DELETE FROM queen.messages WHERE partition_id = ANY (v_small);
        GET DIAGNOSTICS done = ROW_COUNT;
        DELETE FROM queen.partitions WHERE id = ANY (v_small);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        done := done + v_rows;
        RETURN;
    END IF;

    SELECT * INTO v_large FROM queen.partition_lookup WHERE queue_id = p_queue ORDER BY partition_id LIMIT 1 FOR UPDATE;
    IF FOUND THEN
        done := queen.trim(v_large.partition_id, v_large.first_offset + greatest(1, p_limit - 1) - 1);
        RETURN;
    END IF;

    DELETE FROM queen.dead_letter_queue
    WHERE id IN (SELECT d.id FROM queen.dead_letter_queue d WHERE d.queue_id = p_queue LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows < p_limit THEN
        DELETE FROM queen.message_traces
        WHERE id IN (SELECT t.id FROM queen.message_traces t WHERE t.queue_id = p_queue LIMIT p_limit);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
    END IF;
    IF v_rows < p_limit THEN
        DELETE FROM queen.queues WHERE id = p_queue AND name IS NULL;
        finished := true;
    END IF;
END $$;
