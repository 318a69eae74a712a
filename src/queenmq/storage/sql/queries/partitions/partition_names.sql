SELECT q.name AS queue, p.name AS partition FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = $1 AND q.name IS NOT NULL
