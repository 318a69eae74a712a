-- What has no foreign key ends with its queue here: subscriptions, which are kept by name because a group may subscribe before
-- the queue exists, timers and messages in the outbox, which are kept by name as well, and dead letters, whose insertion must not lock the queue behind the consumer's row, the results of pushes, and
-- what is known of its size, of the breakers of its groups and of its limits.
CREATE OR REPLACE FUNCTION queen.on_queues_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queen.consumer_groups WHERE queue_name IN (SELECT name FROM old_queues);
    DELETE FROM queen.timers WHERE queue_name IN (SELECT name FROM old_queues);
    PERFORM queen.forget_sends(ARRAY(SELECT name FROM old_queues));
    DELETE FROM queen.partition_subscriptions WHERE queue_name IN (SELECT name FROM old_queues);
    DELETE FROM queen.operation_queue WHERE queue_name IN (SELECT name FROM old_queues) AND kind = 'push';
    DELETE FROM queen.dead_letter_queue WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.dead_letter_accounts WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.queue_sizes WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.queue_size_changes WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.dropped_partitions WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.ready_floors WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.breakers WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.limit_slots WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.limit_keys WHERE queue_id IN (SELECT id FROM old_queues);
    DELETE FROM queen.limit_tokens WHERE queue_id IN (SELECT id FROM old_queues);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER queues_delete AFTER DELETE ON queen.queues
    REFERENCING OLD TABLE AS old_queues
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_queues_delete();
