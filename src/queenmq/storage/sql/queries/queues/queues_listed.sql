-- A page of the queues by name with the figures that the statistics have of them; of a namespace ($1), a task ($2), with $3 in the name,
-- or fitting the patterns $6.
SELECT q.id, q.name, q.namespace, q.task, q.created_at, coalesce(s.partitions, 0) AS partitions,
       coalesce(s.total, 0) AS total, coalesce(s.pending, 0) AS pending, coalesce(s.processing, 0) AS processing,
       coalesce(s.consumed, 0) AS consumed
FROM queen.queues q LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.task = $2)
  AND ($3::text IS NULL OR strpos(lower(q.name), lower($3)) > 0)
  AND ($6::text[] IS NULL OR q.name LIKE ANY ($6))
ORDER BY q.name LIMIT $4 OFFSET $5
