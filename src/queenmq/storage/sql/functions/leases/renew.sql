-- Extend leases, never shortening and never reviving one; the result has each live lease with its earliest expiry. Leases of a deleted
-- queue are not live, also while its rows are being removed.
-- Locks: rows of partition_consumers by (partition, group).
CREATE OR REPLACE FUNCTION queen.renew(p_lease uuid[], p_seconds integer[])
RETURNS TABLE (lease_id uuid, expires_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM queen.partition_consumers c WHERE c.lease_id = ANY (p_lease)
    ORDER BY c.partition_id, c.consumer_group FOR NO KEY UPDATE;

    RETURN QUERY
    WITH longest AS (
        SELECT t.lease, max(t.seconds) AS seconds FROM unnest(p_lease, p_seconds) AS t (lease, seconds) GROUP BY t.lease
    ), renewed AS (
        UPDATE queen.partition_consumers c
        SET lease_expires_at = greatest(c.lease_expires_at, clock_timestamp() + make_interval(secs => w.seconds)),
            ready_at = greatest(c.lease_expires_at, clock_timestamp() + make_interval(secs => w.seconds)),
            generation = c.generation + 1
        FROM longest w
        WHERE c.lease_id = w.lease AND c.lease_expires_at > clock_timestamp()
          AND EXISTS (SELECT 1 FROM queen.queues q WHERE q.id = c.queue_id AND q.name IS NOT NULL)
        RETURNING c.lease_id, c.lease_expires_at
    )
    SELECT r.lease_id, min(r.lease_expires_at) FROM renewed r GROUP BY r.lease_id;
END $$;
