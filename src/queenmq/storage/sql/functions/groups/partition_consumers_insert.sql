-- A group has one row in a partition. The primary key cannot say so, because it has the generation, too (see the migration newest_keys). Functions that
-- make sure of it themselves, under the lock of the queue's row, set queen.places to `single` meanwhile.
-- Locks: the rows of the queues by id, FOR UPDATE.
CREATE OR REPLACE FUNCTION queen.on_partition_consumers_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('queen.places', true) = 'single' THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM queen.queues WHERE id IN (SELECT queue_id FROM new_rows) ORDER BY id FOR UPDATE;
    IF EXISTS (
        SELECT 1 FROM new_rows n
        CROSS JOIN LATERAL (
            SELECT count(*) AS rows FROM queen.partition_consumers c
            WHERE c.partition_id = n.partition_id AND c.consumer_group = n.consumer_group
        ) c WHERE c.rows > 1
    ) THEN
        RAISE unique_violation USING MESSAGE = 'a group has one row in a partition';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER partition_consumers_insert AFTER INSERT ON queen.partition_consumers
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_partition_consumers_insert();
