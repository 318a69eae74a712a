-- Claim pushes to run: the oldest operation of up to p_partitions partitions, by priority (from p_priority on) and age, and with each up to p_run
-- that follow it in its partition, for they are run together in one transaction. One is claimable when it waits, or when
-- its claim has timed out, its pause after a failure is over, and nothing older of its partition is unfinished. All together have about p_bytes at most, but
-- for one that is larger.
-- A partition whose head another transaction holds is left alone: all others would wait with it.
-- Locks: the claimed rows and the heads of their partitions, without waiting for any.
CREATE OR REPLACE FUNCTION queen.claim_operations(p_worker text, p_claim uuid, p_partitions integer, p_run integer, p_bytes bigint, p_priority integer)
RETURNS SETOF queen.operation_queue LANGUAGE sql AS $$
    WITH heads AS MATERIALIZED (
        SELECT o.id, o.partition_id, o.number, o.priority
        FROM queen.operation_queue o
        WHERE o.status IN ('pending', 'processing') AND o.kind = 'push' AND o.priority >= p_priority
          AND (o.status = 'pending' OR o.claimed_at < clock_timestamp() - make_interval(secs => o.timeout_s))
          AND (o.next_attempt_at IS NULL OR o.next_attempt_at <= clock_timestamp())
          AND NOT EXISTS (
              SELECT 1 FROM queen.operation_queue older
              WHERE older.partition_id = o.partition_id AND older.status IN ('pending', 'processing')
                AND older.number < o.number)
          AND queen.head_is_free(o.partition_id)
        ORDER BY o.priority, o.number
        LIMIT p_partitions
        FOR UPDATE SKIP LOCKED
    ), run AS MATERIALIZED (
        SELECT next.id, next.size_bytes,
               sum(next.size_bytes) OVER (ORDER BY heads.priority, next.number) AS so_far
        FROM heads CROSS JOIN LATERAL (
            SELECT o.id, o.number, o.size_bytes FROM queen.operation_queue o
            WHERE o.partition_id = heads.partition_id AND o.status IN ('pending', 'processing') AND o.number >= heads.number
            ORDER BY o.number LIMIT p_run
        ) next
    )
    UPDATE queen.operation_queue o
    SET status = 'processing', worker = p_worker, claim = p_claim, claimed_at = clock_timestamp(), attempts = o.attempts + 1
    WHERE o.id IN (SELECT id FROM run WHERE so_far - size_bytes < p_bytes) AND o.status IN ('pending', 'processing')
    RETURNING o.*
$$;
