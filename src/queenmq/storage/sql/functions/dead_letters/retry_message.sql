-- Take a message out of the dead letters and have it delivered again, to exactly those groups that had given it up: everything behind it
-- stays finished. Ends a lease that such a group holds in the partition, as a seek does. A message that is not stored any more is pushed
-- again, at the end of its partition. One that is skipped, or that its partition is parked for, is delivered at once, with all its attempts.
-- Raises QN004 if its queue is full, and QN006 if another message has its transaction id now.
-- Returns the number of dead letters taken, and of groups that it was kept back from. p_id is the id that a new message gets.
-- Locks: the queue FOR KEY SHARE, and more if it has a size limit; the partition's head; the groups' rows of partition_consumers, by group;
-- the letters.
CREATE OR REPLACE FUNCTION queen.retry_message(p_partition uuid, p_transaction text, p_id uuid)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_letter queen.dead_letter_queue;
    v_offset bigint;
    v_groups text[];
    v_due    integer;
    v_push   record;
BEGIN
    IF queen.is_of_deleted_queue(p_partition, p_transaction) THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM queen.queues q WHERE q.max_size > 0 AND q.id = (
        SELECT p.queue_id FROM queen.partitions p WHERE p.id = p_partition) FOR NO KEY UPDATE;
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_partition FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_due := queen.end_skipping(p_partition, p_transaction);
    SELECT * INTO v_letter FROM queen.dead_letter_queue
    WHERE partition_id = p_partition AND transaction_id = p_transaction ORDER BY "offset" DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN v_due;
    END IF;
    SELECT m."offset" INTO v_offset FROM queen.messages m
    WHERE m.partition_id = p_partition AND m.transaction_id = p_transaction;
    IF v_offset <> v_letter."offset" THEN
        RAISE SQLSTATE 'QN006' USING MESSAGE = 'another message with this transactionId is stored: the dead letter stays';
    END IF;
    -- In the order of an ack that buries: the group's row before its letters. Those of an earlier message of the same key stay.
    PERFORM 1 FROM queen.partition_consumers c
    WHERE c.partition_id = p_partition AND c.consumer_group IN (
        SELECT d.consumer_group FROM queen.dead_letter_queue d
        WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction AND d."offset" = v_letter."offset")
    ORDER BY c.consumer_group FOR NO KEY UPDATE;
    v_groups := queen.forget_letters(ARRAY(
        SELECT d.id FROM queen.dead_letter_queue d
        WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction AND d."offset" = v_letter."offset"));
    IF v_offset IS NULL THEN
        SELECT pushed.* INTO v_push FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
        CROSS JOIN LATERAL queen.push(
            ARRAY[q.name], ARRAY[p.name], NULL, ARRAY[1], ARRAY[1], ARRAY[p_id], ARRAY[p_transaction],
            ARRAY[v_letter.trace_id], ARRAY[v_letter.payload], ARRAY[v_letter.is_encrypted], ARRAY[v_letter.producer_sub],
            ARRAY[v_letter.headers]) pushed
        WHERE p.id = p_partition;
        IF v_push.refused IS NOT NULL THEN
            RAISE SQLSTATE 'QN004' USING MESSAGE = 'the queue is full: the message would exceed its max capacity (maxSize)';
        END IF;
        RETURN cardinality(v_groups) + v_due;
    END IF;

    INSERT INTO queen.queue_size_changes (queue_id, added)
    SELECT q.id, max(c.position) - v_offset + 1
    FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id AND q.max_size > 0
    WHERE c.partition_id = p_partition AND c.consumer_group = ANY (v_groups) AND c.position >= v_offset
    GROUP BY q.id;
    UPDATE queen.partition_consumers c
    SET position = least(c.position, v_offset - 1),
        done = (c.done + CASE WHEN c.position > v_offset THEN int8multirange(int8range(v_offset + 1, c.position, '[]'))
                              ELSE '{}' END) - int8multirange(int8range(v_offset, v_offset, '[]')),
        passed_over = c.passed_over - CASE WHEN v_offset <= c.position OR c.done @> v_offset THEN 1 ELSE 0 END,
        retry_at = NULL, ready_at = clock_timestamp(),
        lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL
    WHERE c.partition_id = p_partition AND c.consumer_group = ANY (v_groups);
    PERFORM queen.forget_failures(p_partition, v_groups, int8multirange(int8range(v_offset, v_offset, '[]')));
    RETURN cardinality(v_groups) + v_due;
END $$;
