-- The most frequent errors among the newest thousand dead letters of a queue ($1), or of all.
SELECT x.error_message AS error, count(*) AS count FROM (
    (SELECT d.error_message FROM queen.dead_letter_queue d
     WHERE d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1) ORDER BY d.failed_at DESC LIMIT 1000)
    UNION ALL
    (SELECT d.error_message FROM queen.dead_letter_queue d
     WHERE $1::text IS NULL AND d.queue_id NOT IN (SELECT q.id FROM queen.queues q WHERE q.name IS NULL)
     ORDER BY d.failed_at DESC LIMIT 1000)
) x GROUP BY x.error_message ORDER BY count(*) DESC, x.error_message LIMIT 10
