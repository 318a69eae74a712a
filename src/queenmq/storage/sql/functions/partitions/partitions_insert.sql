-- Give every new partition its head and a row for each group that has subscribed to its queue.
-- Fires for every way a partition is made. Locks: the inserting statement holds KEY SHARE on the queue (foreign
-- key); queen.subscribe takes FOR UPDATE on it, so a partition and a registration cannot miss each other.
CREATE OR REPLACE FUNCTION queen.on_partitions_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queen.partition_lookup (partition_id, queue_id)
    SELECT id, queue_id FROM new_partitions ORDER BY id;
    INSERT INTO queen.partition_ages (partition_id, queue_id, idle_since)
    SELECT id, queue_id, created_at FROM new_partitions ORDER BY id;

    PERFORM set_config('queen.places', 'single', true);
    INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, fair_key)
    SELECT n.id, g.name, n.queue_id, CASE WHEN q.fair_separator IS NOT NULL THEN split_part(n.name, q.fair_separator, 1) END
    FROM new_partitions n
    JOIN queen.queues q ON q.id = n.queue_id
    JOIN queen.consumer_groups g ON g.queue_name = q.name AND (g.registered OR g.placed_upto IS NOT NULL)
    ORDER BY n.id, g.name;
    PERFORM set_config('queen.places', '', true);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER partitions_insert AFTER INSERT ON queen.partitions
    REFERENCING NEW TABLE AS new_partitions
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_partitions_insert();
