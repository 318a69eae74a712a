-- How many dead letters each queue has: the narrowing is that of dead_letters_count.sql. The most first; at most $8 queues.
SELECT q.name, count(*) AS letters
FROM queen.dead_letter_queue d
JOIN queen.queues q ON q.id = d.queue_id AND q.name IS NOT NULL
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR d.consumer_group = $2)
  AND ($3::text IS NULL OR d.partition_name = $3)
  AND ($4::timestamptz IS NULL OR d.failed_at >= $4) AND ($5::timestamptz IS NULL OR d.failed_at <= $5)
  AND ($6::text IS NULL OR strpos(lower(d.error_message), lower($6)) > 0)
  AND ($7::text IS NULL OR queen.fingerprint(d.error_message) = $7)
GROUP BY q.name ORDER BY count(*) DESC, q.name LIMIT $8
