-- A page of the namespaces with the sums of their queues' figures; $3: patterns of the queues, if not all may be seen.
SELECT q.namespace AS name, count(*) AS queues, coalesce(sum(s.partitions), 0)::bigint AS partitions,
       coalesce(sum(s.total), 0)::bigint AS total, coalesce(sum(s.pending), 0)::bigint AS pending
FROM queen.queues q LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
WHERE q.namespace <> '' AND ($3::text[] IS NULL OR q.name LIKE ANY ($3)) GROUP BY q.namespace ORDER BY q.namespace LIMIT $1 OFFSET $2
