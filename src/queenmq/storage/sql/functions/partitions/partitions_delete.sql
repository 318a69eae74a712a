-- Messages, traces, attempts and the state of streams go with their partition (there is no foreign key on the hot table). Of a queue that stays, it
-- is written down which partitions are gone, with the last offset that was stored, unless queen.drop_idle_partitions has done so, which
-- knows better.
-- Locks: those of queen.lock_dropped, if a queue stays; rows of recent_partitions.
CREATE OR REPLACE FUNCTION queen.on_partitions_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM old_partitions o JOIN queen.queues q ON q.id = o.queue_id AND q.name IS NOT NULL
        WHERE NOT EXISTS (SELECT 1 FROM queen.dropped_partitions d WHERE d.queue_id = o.queue_id AND d.number = o.number)
    ) THEN
        PERFORM queen.lock_dropped();
        INSERT INTO queen.dropped_partitions (queue_id, number, name, last_offset)
        SELECT o.queue_id, o.number, o.name, (
            SELECT m."offset" FROM queen.messages m WHERE m.partition_id = o.id ORDER BY m."offset" DESC LIMIT 1)
        FROM old_partitions o
        JOIN queen.queues q ON q.id = o.queue_id AND q.name IS NOT NULL
        ON CONFLICT (queue_id, number) DO NOTHING;
    END IF;
    DELETE FROM queen.messages WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.stream_state WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.stream_reads WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.message_traces WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.attempts WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.partition_ages WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.deleted_offsets WHERE partition_id IN (SELECT id FROM old_partitions);
    -- Or it would keep others from the list (see queen.measure_page).
    DELETE FROM queen.recent_partitions r USING old_partitions o WHERE r.queue_id = o.queue_id AND r.partition_id = o.id;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER partitions_delete AFTER DELETE ON queen.partitions
    REFERENCING OLD TABLE AS old_partitions
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_partitions_delete();
