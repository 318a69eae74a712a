-- Dead letters of a queue by group, minute and reason.
SELECT d.consumer_group, date_trunc('minute', d.failed_at), left(d.error_message, 200), count(*)
FROM queen.dead_letter_queue d JOIN queen.queues q ON q.id = d.queue_id
WHERE q.name = $1::text AND d.failed_at >= $2::timestamptz AND d.failed_at < $3::timestamptz
GROUP BY 1, 2, 3 ORDER BY 1, 2, 4 DESC
