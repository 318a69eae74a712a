-- Lock what the run of claimed pushes needs, and return which of them are still claimed. Call it first in their transaction.
-- Locks, in the order of all others: queues with a size limit by id, heads by partition, then the operations by number.
CREATE OR REPLACE FUNCTION queen.hold_operations(p_claim uuid, p_ids uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_partitions uuid[];
BEGIN
    SELECT array_agg(DISTINCT partition_id) INTO v_partitions FROM queen.operation_queue WHERE id = ANY (p_ids);
    PERFORM 1 FROM queen.queues q WHERE q.max_size > 0 AND q.id IN (
        SELECT l.queue_id FROM queen.partition_lookup l WHERE l.partition_id = ANY (v_partitions))
    ORDER BY q.id FOR NO KEY UPDATE;
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_partitions) ORDER BY partition_id FOR NO KEY UPDATE;
    RETURN ARRAY(
        SELECT o.id FROM queen.operation_queue o
        WHERE o.id = ANY (p_ids) AND o.claim = p_claim AND o.status = 'processing'
        ORDER BY o.number FOR UPDATE);
END $$;
