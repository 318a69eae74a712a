-- Claim the oldest operation that is no push and that waits, or whose claim has timed out, and before which nothing of its queue is
-- unfinished, also one that waits for its next attempt. Locks: the claimed row, without waiting for any.
CREATE OR REPLACE FUNCTION queen.claim_administration(p_worker text, p_claim uuid) RETURNS SETOF uuid LANGUAGE sql AS $$
    WITH next AS MATERIALIZED (
        SELECT o.id FROM queen.operation_queue o
        WHERE o.kind <> 'push' AND o.status IN ('pending', 'processing')
          AND (o.status = 'pending' OR o.claimed_at < clock_timestamp() - make_interval(secs => o.timeout_s))
          AND (o.next_attempt_at IS NULL OR o.next_attempt_at <= clock_timestamp())
          AND NOT EXISTS (
              SELECT 1 FROM queen.operation_queue older
              WHERE older.kind <> 'push' AND older.status IN ('pending', 'processing')
                AND older.queue_id = o.queue_id AND older.number < o.number)
        ORDER BY o.priority, o.number
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
    UPDATE queen.operation_queue o
    SET status = 'processing', worker = p_worker, claim = p_claim, claimed_at = clock_timestamp(), attempts = o.attempts + 1
    FROM next WHERE o.id = next.id
    RETURNING o.id
$$;
