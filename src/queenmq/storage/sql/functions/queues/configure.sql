-- Create a queue or replace all of its options, and make sure that its partition Default exists. Without p_may_destroy an
-- existing queue keeps what protects its messages, and its namespace and task: a change that would delete some of them
-- earlier, or store them in clear, or move it to another namespace than somebody has chosen, is refused (QN007). Without
-- p_may_change it can only be configured as it is.
-- Locks: the queue's row; if the delay or window changed, its waiting rows of partition_consumers by (partition,
-- group), because the time at which they may be claimed changes with it.
CREATE OR REPLACE FUNCTION queen.configure(
    p_queue text, p_namespace text, p_task text,
    p_lease_time_s integer, p_retry_limit integer, p_retry_delay_ms integer, p_max_size bigint, p_ttl_s integer,
    p_dead_letter_queue boolean, p_dlq_after_max_retries boolean, p_priority integer, p_delayed_processing_s integer,
    p_window_buffer_s integer, p_retention_s integer, p_completed_retention_s integer, p_retention_enabled boolean,
    p_encryption_enabled boolean, p_max_wait_time_s integer, p_archive_before_delete boolean,
    p_set_aside_failed_pushes boolean DEFAULT false, p_may_destroy boolean DEFAULT true,
    p_may_change boolean DEFAULT true, p_pop_wait text DEFAULT NULL,
    OUT queue_id uuid, OUT partition_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_before     queen.queues;
    v_partitions uuid[];
    v_groups     text[];
    v_destroyed  text;
    v_changed    text;
    v_is_new     boolean;
BEGIN
    SELECT * INTO v_before FROM queen.queues WHERE name = p_queue FOR NO KEY UPDATE;
    IF FOUND AND NOT p_may_destroy THEN
        -- Clients that give none mean that they do not care. What a push has made of the name was not chosen.
        p_namespace := coalesce(nullif(p_namespace, ''), v_before.namespace);
        p_task := coalesce(nullif(p_task, ''), v_before.task);
        -- A time of 0 or null means never.
        SELECT string_agg(option, ', ') INTO v_destroyed FROM (VALUES
            ('encryptionEnabled', v_before.encryption_enabled AND NOT p_encryption_enabled),
            ('retentionSeconds', p_retention_enabled AND nullif(p_retention_s, 0) IS NOT NULL AND coalesce(
                p_retention_s < CASE WHEN v_before.retention_enabled THEN nullif(v_before.retention_s, 0) END, true)),
            ('completedRetentionSeconds', p_retention_enabled AND nullif(p_completed_retention_s, 0) IS NOT NULL AND coalesce(
                p_completed_retention_s
                    < CASE WHEN v_before.retention_enabled THEN nullif(v_before.completed_retention_s, 0) END, true)),
            ('ttl', nullif(p_ttl_s, 0) IS NOT NULL AND coalesce(p_ttl_s < nullif(v_before.ttl_s, 0), true)),
            ('maxWaitTimeSeconds', nullif(p_max_wait_time_s, 0) IS NOT NULL
                AND coalesce(p_max_wait_time_s < nullif(v_before.max_wait_time_s, 0), true)),
            ('deadLetterQueue', v_before.dead_letter_queue AND NOT p_dead_letter_queue),
            ('archiveBeforeDelete', v_before.archive_before_delete AND NOT p_archive_before_delete),
            ('namespace', p_namespace <> v_before.namespace
                AND v_before.namespace NOT IN ('', split_part(p_queue, '.', 1))),
            ('task', p_task <> v_before.task AND v_before.task NOT IN ('', split_part(p_queue, '.', 2)))
        ) AS changes (option, destroys) WHERE destroys;
        IF v_destroyed IS NOT NULL THEN
            RAISE SQLSTATE 'QN007' USING MESSAGE = format(
                'changing %s of queue %L would delete messages earlier, protect them less or move it: this needs the role admin',
                v_destroyed, p_queue);
        END IF;
        SELECT string_agg(option, ', ') INTO v_changed FROM (VALUES
            ('namespace', p_namespace <> v_before.namespace),
            ('task', p_task <> v_before.task),
            ('leaseTime', p_lease_time_s <> v_before.lease_time_s),
            ('retryLimit', p_retry_limit <> v_before.retry_limit),
            ('retryDelay', p_retry_delay_ms <> v_before.retry_delay_ms),
            ('maxSize', p_max_size IS DISTINCT FROM v_before.max_size),
            ('ttl', p_ttl_s IS DISTINCT FROM v_before.ttl_s),
            ('deadLetterQueue', p_dead_letter_queue <> v_before.dead_letter_queue),
            ('dlqAfterMaxRetries', p_dlq_after_max_retries <> v_before.dlq_after_max_retries),
            ('priority', p_priority <> v_before.priority),
            ('delayedProcessing', p_delayed_processing_s <> v_before.delayed_processing_s),
            ('windowBuffer', p_window_buffer_s <> v_before.window_buffer_s),
            ('retentionSeconds', p_retention_s IS DISTINCT FROM v_before.retention_s),
            ('completedRetentionSeconds', p_completed_retention_s IS DISTINCT FROM v_before.completed_retention_s),
            ('retentionEnabled', p_retention_enabled <> v_before.retention_enabled),
            ('encryptionEnabled', p_encryption_enabled <> v_before.encryption_enabled),
            ('maxWaitTimeSeconds', p_max_wait_time_s IS DISTINCT FROM v_before.max_wait_time_s),
            ('archiveBeforeDelete', p_archive_before_delete <> v_before.archive_before_delete),
            ('setAsideFailedPushes', p_set_aside_failed_pushes <> v_before.set_aside_failed_pushes),
            ('popWait…', p_pop_wait IS DISTINCT FROM v_before.pop_wait)
        ) AS changes (option, differs) WHERE differs AND NOT p_may_change;
        IF v_changed IS NOT NULL THEN
            RAISE SQLSTATE 'QN007' USING MESSAGE = format(
                'the token may create queues, and not change %s of queue %L: this needs "administer"', v_changed, p_queue);
        END IF;
    END IF;
    INSERT INTO queen.queues (name, namespace, task, lease_time_s, retry_limit, retry_delay_ms, max_size, ttl_s,
        dead_letter_queue, dlq_after_max_retries, priority, delayed_processing_s, window_buffer_s, retention_s,
        completed_retention_s, retention_enabled, encryption_enabled, max_wait_time_s,
        archive_before_delete, set_aside_failed_pushes, pop_wait)
    VALUES (p_queue, p_namespace, p_task, p_lease_time_s, p_retry_limit, p_retry_delay_ms, p_max_size, p_ttl_s,
        p_dead_letter_queue, p_dlq_after_max_retries, p_priority, p_delayed_processing_s, p_window_buffer_s,
        p_retention_s, p_completed_retention_s, p_retention_enabled, p_encryption_enabled, p_max_wait_time_s,
        p_archive_before_delete, p_set_aside_failed_pushes, p_pop_wait)
    ON CONFLICT (name) DO UPDATE SET
        namespace = excluded.namespace, task = excluded.task, lease_time_s = excluded.lease_time_s,
        retry_limit = excluded.retry_limit, retry_delay_ms = excluded.retry_delay_ms, max_size = excluded.max_size,
        ttl_s = excluded.ttl_s, dead_letter_queue = excluded.dead_letter_queue,
        dlq_after_max_retries = excluded.dlq_after_max_retries, priority = excluded.priority,
        delayed_processing_s = excluded.delayed_processing_s, window_buffer_s = excluded.window_buffer_s,
        retention_s = excluded.retention_s, completed_retention_s = excluded.completed_retention_s,
        retention_enabled = excluded.retention_enabled, encryption_enabled = excluded.encryption_enabled,
        max_wait_time_s = excluded.max_wait_time_s, archive_before_delete = excluded.archive_before_delete,
        set_aside_failed_pushes = excluded.set_aside_failed_pushes, pop_wait = excluded.pop_wait
    RETURNING id, xmax = 0 INTO queue_id, v_is_new;
    IF v_before.id IS NULL AND NOT v_is_new AND NOT p_may_destroy THEN
        RAISE serialization_failure USING MESSAGE = 'the queue was made by another transaction meanwhile';
    END IF;

    PERFORM queen.ensure_partitions(ARRAY[p_queue], ARRAY['Default']);
    SELECT p.id INTO partition_id FROM queen.partitions p WHERE p.queue_id = configure.queue_id AND p.name = 'Default';

    IF v_before.max_wait_time_s = 0 AND p_max_wait_time_s > 0 THEN
        -- Since when something is unread was not kept meanwhile (see queen.partition_ages).
        UPDATE queen.partition_ages a SET unread_at = a.oldest_at WHERE a.queue_id = configure.queue_id AND a.unread_at > a.oldest_at;
    END IF;
    IF (v_before.delayed_processing_s, v_before.window_buffer_s) <> (p_delayed_processing_s, p_window_buffer_s) THEN
        SELECT array_agg(x.partition_id), array_agg(x.consumer_group) INTO v_partitions, v_groups FROM (
            SELECT c.partition_id, c.consumer_group FROM queen.partition_consumers c
            WHERE c.queue_id = configure.queue_id AND c.lease_id IS NULL AND c.ready_at IS NOT NULL
            ORDER BY c.partition_id, c.consumer_group FOR NO KEY UPDATE
        ) x;
        IF v_partitions IS NOT NULL THEN
            PERFORM queen.settle(v_partitions, v_groups, true);
        END IF;
    END IF;
END $$;
