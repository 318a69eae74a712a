-- Forget the oldest dead letters, at most $5: of a queue ($1), of a group ($2) and of partitions of a name ($3) if given, that failed at or
-- before $4. Returns how many were chosen and how many
-- forgotten. Locks: their rows, in the order of their ids; then rows of dead_letter_counts by (partition, group), and their
-- accounts.
WITH chosen AS (
    SELECT d.id FROM queen.dead_letter_queue d
    WHERE d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1)
      AND ($2::text IS NULL OR d.consumer_group = $2) AND ($3::text IS NULL OR d.partition_name = $3) AND d.failed_at <= $4
    ORDER BY d.failed_at LIMIT $5
), locked AS (
    SELECT d.id FROM queen.dead_letter_queue d WHERE d.id IN (SELECT id FROM chosen) ORDER BY d.id FOR UPDATE
), purged AS (
    DELETE FROM queen.dead_letter_queue d USING locked WHERE d.id = locked.id
    RETURNING d.partition_id, d.consumer_group, d."offset"
), settled AS (
    UPDATE queen.dead_letter_accounts a SET letters = a.letters - p.letters, offsets = a.offsets - p.offsets
    FROM (
        SELECT partition_id, consumer_group, count(*) AS letters, sum("offset") AS offsets FROM purged
        GROUP BY partition_id, consumer_group
    ) p
    WHERE a.partition_id = p.partition_id AND a.consumer_group = p.consumer_group
)
SELECT (SELECT count(*) FROM chosen) AS chosen, (SELECT count(*) FROM purged) AS purged
