-- Keep dead_letter_counts exact when dead letters go, whatever removes them.
-- Locks: rows of dead_letter_counts by (partition, group).
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

CREATE OR REPLACE TRIGGER dead_letters_delete AFTER DELETE ON queen.dead_letter_queue
    REFERENCING OLD TABLE AS old_letters
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_dead_letters_delete();
