-- Messages, traces and the state of streams go with their partition (there is no foreign key on the hot table).
CREATE OR REPLACE FUNCTION queen.on_partitions_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queen.messages WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.stream_state WHERE partition_id IN (SELECT id FROM old_partitions);
    DELETE FROM queen.message_traces WHERE partition_id IN (SELECT id FROM old_partitions);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER partitions_delete AFTER DELETE ON queen.partitions
    REFERENCING OLD TABLE AS old_partitions
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_partitions_delete();
