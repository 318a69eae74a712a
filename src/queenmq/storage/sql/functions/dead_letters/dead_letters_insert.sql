-- Keep dead_letter_counts exact when dead letters come, whatever inserts them.
-- Locks: rows of dead_letter_counts by (partition, group). A function that buries holds the row of partition_consumers of the same
-- (partition, group), so burials do not wait for each other here.
CREATE OR REPLACE FUNCTION queen.on_dead_letters_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queen.dead_letter_counts AS c (partition_id, consumer_group, queue_id, letters)
    SELECT partition_id, consumer_group, queue_id, count(*) FROM new_letters
    GROUP BY partition_id, consumer_group, queue_id ORDER BY partition_id, consumer_group
    ON CONFLICT (partition_id, consumer_group) DO UPDATE SET letters = c.letters + excluded.letters;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dead_letters_insert AFTER INSERT ON queen.dead_letter_queue
    REFERENCING NEW TABLE AS new_letters
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_dead_letters_insert();
