-- What is left of deleted queues and has no operation any more (it was cancelled and forgotten) gets a new one.
INSERT INTO queen.operation_queue (id, kind, queue_id, parameters, priority)
SELECT queen.uuid7(), 'delete_queue', q.id, '{}', 10 FROM queen.queues q
WHERE q.name IS NULL AND NOT EXISTS (
    SELECT 1 FROM queen.operation_queue o WHERE o.queue_id = q.id AND o.kind = 'delete_queue' AND o.status <> 'completed')
RETURNING id
