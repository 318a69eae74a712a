-- Delete a queue with everything of it. Returns whether it existed, and an operation if rows are left to be removed.
-- With up to p_limit messages, partitions and dead letters all of it goes here. With more, the queue loses its name and what is kept by
-- name: from the commit on no client can push to it, pop from it or acknowledge anything of it, and the name is free for a new
-- queue. queen.remove_queue does the rest, as an operation under p_claim, or for the worker that claims it if that is null.
-- Whatever else was to be done to the queue is cancelled.
-- Locks: its timers, its messages in the outbox that are free, queen.administer, the queue's operations, the queue FOR UPDATE; for a small one then its heads by partition and its groups' rows
-- by (partition, group), in the order in which pushes and acks take them, so that the cascade meets nothing that waits for it.
CREATE OR REPLACE FUNCTION queen.delete_queue(
    p_queue text, p_worker text, p_claim uuid, p_limit bigint,
    OUT existed boolean, OUT id uuid, OUT total bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue uuid;
    v_now   timestamptz;
BEGIN
    -- First, because a server that pushes timers locks them before the heads of their partitions.
    DELETE FROM queen.timers WHERE queue_name = p_queue;
    PERFORM queen.forget_sends(ARRAY[p_queue]);
    LOOP
        SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue;
        existed := FOUND;
        IF NOT existed THEN
            DELETE FROM queen.consumer_groups WHERE queue_name = p_queue;
            DELETE FROM queen.partition_subscriptions WHERE queue_name = p_queue;
            RETURN;
        END IF;
        PERFORM queen.administer(v_queue);
        UPDATE queen.operation_queue o
        SET status = 'cancelled', claim = NULL, finished_at = clock_timestamp(),
            error = queen.cancellation(o) || ' The queue was deleted.'
        WHERE o.queue_id = v_queue AND o.kind <> 'push' AND o.status IN ('pending', 'processing');
        PERFORM 1 FROM queen.queues q WHERE q.id = v_queue AND q.name = p_queue FOR UPDATE;
        EXIT WHEN FOUND;
    END LOOP;

    SELECT coalesce(sum(greatest(0, l.last_offset - l.first_offset + 1) + 1), 0) INTO total
    FROM queen.partition_lookup l WHERE l.queue_id = v_queue;
    IF total + (SELECT coalesce(sum(d.letters), 0) FROM queen.dead_letter_counts d WHERE d.queue_id = v_queue) <= p_limit THEN
        PERFORM 1 FROM queen.partition_lookup WHERE queue_id = v_queue ORDER BY partition_id FOR UPDATE;
        PERFORM 1 FROM queen.partition_consumers WHERE queue_id = v_queue
        ORDER BY partition_id, consumer_group FOR UPDATE;
        DELETE FROM queen.queues q WHERE q.id = v_queue;
        RETURN;
    END IF;

    DELETE FROM queen.consumer_groups WHERE queue_name = p_queue;
    DELETE FROM queen.partition_subscriptions WHERE queue_name = p_queue;
    DELETE FROM queen.operation_queue o
    WHERE o.queue_name = p_queue AND o.kind = 'push' AND o.status IN ('pending', 'processing');
    DELETE FROM queen.queue_statistics WHERE queue_id = v_queue;
    DELETE FROM queen.group_statistics WHERE queue_id = v_queue;
    DELETE FROM queen.page_statistics WHERE queue_id = v_queue;
    DELETE FROM queen.lagging_partitions WHERE queue_id = v_queue;
    DELETE FROM queen.recent_partitions WHERE queue_id = v_queue;
    UPDATE queen.queues q
    SET name = NULL, namespace = '', task = '', max_size = 0, ttl_s = NULL, retention_enabled = false,
        encryption_enabled = false, max_wait_time_s = 0, archive_before_delete = false
    WHERE q.id = v_queue;
    v_now := clock_timestamp();
    INSERT INTO queen.operation_queue
        (id, kind, queue_name, queue_id, parameters, total, created_at, priority, status, worker, claim, claimed_at, attempts)
    SELECT queen.uuid7(), 'delete_queue', p_queue, v_queue, '{}', delete_queue.total, v_now, 10, s.status, s.worker,
           s.claim, s.claimed_at, s.attempts
    FROM queen.first_claim(p_worker, p_claim) s
    RETURNING operation_queue.id INTO id;
END $$;
