-- Keep dead_letter_counts exact, for every way a dead letter comes or goes.
-- Locks: rows of dead_letter_counts by (partition, group). Whoever buries holds the row of partition_consumers of the same
-- (partition, group), so burials do not wait for each other here.
CREATE OR REPLACE FUNCTION queen.on_dead_letters_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queen.dead_letter_counts AS c (partition_id, consumer_group, queue_id, letters)
    SELECT partition_id, consumer_group, queue_id, count(*) FROM new_letters
    GROUP BY partition_id, consumer_group, queue_id ORDER BY partition_id, consumer_group
    ON CONFLICT (partition_id, consumer_group) DO UPDATE SET letters = c.letters + excluded.letters;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION queen.on_dead_letters_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.dead_letter_counts
    WHERE (partition_id, consumer_group) IN (SELECT partition_id, consumer_group FROM old_letters)
    ORDER BY partition_id, consumer_group FOR NO KEY UPDATE;
    UPDATE queen.dead_letter_counts c SET letters = c.letters - g.letters
    FROM (SELECT partition_id, consumer_group, count(*) AS letters FROM old_letters GROUP BY partition_id, consumer_group) g
    WHERE c.partition_id = g.partition_id AND c.consumer_group = g.consumer_group;
    DELETE FROM queen.dead_letter_counts c
    WHERE c.letters <= 0 AND (c.partition_id, c.consumer_group) IN (SELECT partition_id, consumer_group FROM old_letters);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dead_letters_insert AFTER INSERT ON queen.dead_letter_queue
    REFERENCING NEW TABLE AS new_letters
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_dead_letters_insert();

CREATE OR REPLACE TRIGGER dead_letters_delete AFTER DELETE ON queen.dead_letter_queue
    REFERENCING OLD TABLE AS old_letters
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_dead_letters_delete();
