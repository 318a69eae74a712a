-- The most frequent errors among the newest thousand dead letters of a queue ($1), or of all: by what errors of one cause have in common
-- (queen.fingerprint), with the newest of them. Errors from before they were cut are cut here.
SELECT (array_agg(x.error_message ORDER BY x.failed_at DESC))[1] AS error, x.fingerprint, count(*) AS count, max(x.failed_at) AS last_at,
       count(DISTINCT x.queue_id) AS queues
FROM (
    SELECT left(y.error_message, 2000) AS error_message, y.failed_at, y.queue_id, queen.fingerprint(y.error_message) AS fingerprint FROM (
        (SELECT d.error_message, d.failed_at, d.queue_id FROM queen.dead_letter_queue d
         WHERE d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1) ORDER BY d.failed_at DESC LIMIT 1000)
        UNION ALL
        (SELECT d.error_message, d.failed_at, d.queue_id FROM queen.dead_letter_queue d
         WHERE $1::text IS NULL AND d.queue_id NOT IN (SELECT q.id FROM queen.queues q WHERE q.name IS NULL)
         ORDER BY d.failed_at DESC LIMIT 1000)
    ) y
) x GROUP BY x.fingerprint ORDER BY count(*) DESC, x.fingerprint LIMIT 10
