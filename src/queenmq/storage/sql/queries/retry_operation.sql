-- A failed operation is done again, as the newest of its partition: what came after it is not undone.
-- Its number is drawn under the lock of the partition's head, as every other one.
WITH head AS MATERIALIZED (
    SELECT l.partition_id FROM queen.operation_queue o JOIN queen.partition_lookup l ON l.partition_id = o.partition_id
    WHERE o.id = $1 FOR NO KEY UPDATE OF l
)
UPDATE queen.operation_queue o
SET number = DEFAULT, status = 'pending', attempts = 0, finished_at = NULL
FROM head
WHERE o.id = $1 AND o.status = 'failed' AND o.partition_id = head.partition_id
RETURNING o.id
