-- A push that waits after a failure, or blocks its partition, is tried at once, in its place. One that was set aside is done again as the newest of its
-- partition, because what came after it is not undone: its number is drawn under the lock of the partition's head, as every other one.
-- It may exceed maxSize, as everything that was accepted, and is counted at the next push.
WITH head AS MATERIALIZED (
    SELECT l.partition_id, l.queue_id FROM queen.operation_queue o JOIN queen.partition_lookup l ON l.partition_id = o.partition_id
    WHERE o.id = $1 FOR NO KEY UPDATE OF l
), at_once AS (
    UPDATE queen.operation_queue o
    SET attempts = 0, faults = 0, next_attempt_at = NULL
    FROM head
    WHERE o.id = $1 AND o.status = 'pending' AND o.next_attempt_at IS NOT NULL AND o.partition_id = head.partition_id
    RETURNING o.id, true AS in_place
), again AS (
    UPDATE queen.operation_queue o
    SET number = DEFAULT, status = 'pending', attempts = 0, faults = 0, next_attempt_at = NULL, finished_at = NULL
    FROM head
    WHERE o.id = $1 AND o.status = 'failed' AND o.partition_id = head.partition_id
    RETURNING o.id, false AS in_place
), counted AS (
    INSERT INTO queen.queue_size_changes (queue_id, added)
    SELECT q.id, o.items FROM again
    JOIN queen.operation_queue o ON o.id = again.id JOIN head ON true JOIN queen.queues q ON q.id = head.queue_id AND q.max_size > 0
)
SELECT in_place FROM at_once UNION ALL SELECT in_place FROM again
