-- Lock what the run of claimed pushes needs, and return which of them may be run: those that are still claimed, and before which
-- nothing of their partition is unfinished that is not run with them. Call it first in their transaction, which waits at most
-- p_lock_ms for each lock from here on: a transaction that has such a partition locked for long must not hold up the others.
-- Locks, in the order of all others: heads by partition, then the operations by number. No queue: what is queued has its place under
-- the size limit already.
CREATE OR REPLACE FUNCTION queen.hold_operations(p_claim uuid, p_ids uuid[], p_lock_ms integer DEFAULT 500)
RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_partitions uuid[];
    v_held       uuid[];
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    SELECT array_agg(DISTINCT partition_id) INTO v_partitions FROM queen.operation_queue WHERE id = ANY (p_ids);
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_partitions) ORDER BY partition_id FOR NO KEY UPDATE;
    v_held := ARRAY(
        SELECT o.id FROM queen.operation_queue o
        WHERE o.id = ANY (p_ids) AND o.claim = p_claim AND o.status = 'processing'
        ORDER BY o.number FOR UPDATE);
    -- A statement of its own, because it must see what happened while the locks were waited for. Nothing becomes the oldest later:
    -- numbers are drawn under the lock of the head.
    RETURN ARRAY(
        SELECT o.id FROM queen.operation_queue o
        WHERE o.id = ANY (v_held) AND NOT EXISTS (
            SELECT 1 FROM queen.operation_queue older
            WHERE older.partition_id = o.partition_id AND older.status IN ('pending', 'processing')
              AND older.number < o.number AND older.id <> ALL (v_held))
        ORDER BY o.number);
END $$;
