-- The queues to analyse, with the last minute that is known of each.
SELECT q.name, max(a.minute) FROM queen.queues q
LEFT JOIN queen.pipeline_analytics a ON a.queue_name = q.name AND a.consumer_group = ''
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1::text)
GROUP BY q.name ORDER BY q.name
