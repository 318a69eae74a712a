-- Partitions with $1 (in lower case) in their name; up to $2, of queues that fit the patterns $3 and have $4 (or null) in their names. Of some
-- thousand partitions every name is read: what is common is found there. The others are found by the words in $5, the beginnings of words and
-- numbers (null: by none), in the index partitions_words.
WITH near AS MATERIALIZED (
    SELECT p.id, p.name, p.queue FROM (
        SELECT p.id, p.name, q.name AS queue
        FROM queen.queues q
        CROSS JOIN LATERAL (SELECT p.id, p.name FROM queen.partitions p WHERE p.queue_id = q.id LIMIT 10000) p
        WHERE q.name IS NOT NULL AND ($3::text[] IS NULL OR q.name LIKE ANY ($3)) AND ($4::text IS NULL OR strpos(lower(q.name), $4) > 0)
        LIMIT 10000
    ) p
    WHERE strpos(lower(p.name), $1) > 0 LIMIT $2
), far AS (
    SELECT c.id, c.name, c.queue FROM (
        SELECT w.id, w.name, q.name AS queue FROM (
            SELECT p.id, p.name, p.queue_id FROM queen.partitions p
            WHERE (SELECT count(*) FROM near) < $2
              AND array_to_tsvector(array_remove(
                  regexp_split_to_array(lower(p.name), '[^a-z0-9]+|(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])'), '')) @@ $5::text::tsquery
            OFFSET 0  -- so that it follows its index
        ) w
        JOIN queen.queues q ON q.id = w.queue_id AND q.name IS NOT NULL
        WHERE ($3 IS NULL OR q.name LIKE ANY ($3)) AND ($4 IS NULL OR strpos(lower(q.name), $4) > 0)
        LIMIT 5000
    ) c
    WHERE strpos(lower(c.name), $1) > 0
    LIMIT $2
)
SELECT f.id, f.name, f.queue FROM (SELECT * FROM near UNION SELECT * FROM far) f
ORDER BY strpos(lower(f.name), $1) > 1, length(f.name), f.name, f.queue LIMIT $2
