-- A group has gone back: eviction may have to examine the partition again (see queen.partition_ages).
CREATE OR REPLACE FUNCTION queen.on_partition_consumers_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM queen.queues WHERE id = NEW.queue_id AND max_wait_time_s > 0) THEN
        UPDATE queen.partition_ages SET unread_at = oldest_at WHERE partition_id = NEW.partition_id;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER partition_consumers_back AFTER UPDATE OF position ON queen.partition_consumers
    FOR EACH ROW WHEN (NEW.position < OLD.position) EXECUTE FUNCTION queen.on_partition_consumers_back();
