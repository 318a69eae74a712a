-- Remember the acknowledgements that say that a message failed, before they are applied (see queen.ack, whose arguments these are): those
-- of live leases, and those of no lease that are applied all the same. Errors are cut to 2,000 characters.
-- The caller holds the rows of the groups.
CREATE OR REPLACE FUNCTION queen.note_failures(
    p_partition uuid[], p_offset bigint[], p_group text[], p_lease uuid[], p_status text[], p_error text[], p_required uuid[])
RETURNS void LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    INSERT INTO queen.attempts (partition_id, "offset", consumer_group, ended_at, outcome, error, lease_id)
    SELECT DISTINCT ON (t.part, t.grp, t.o) t.part, t.o, t.grp, v_now, t.status, left(t.error, 2000), c.held
    FROM unnest(p_partition, p_offset, p_group, p_lease, p_status, p_error) WITH ORDINALITY AS t (part, o, grp, lease, status, error, i)
    CROSS JOIN LATERAL (
        SELECT n.position, n.done, x.held, x.held IS NOT NULL AND n.lease_offsets @> t.o AS is_leased,
               t.lease IS NOT NULL OR cardinality(p_required) > 0 AS is_fenced
        FROM (
            SELECT p.* FROM queen.partition_consumers p
            WHERE p.partition_id = t.part AND p.consumer_group = t.grp ORDER BY p.generation DESC LIMIT 1
        ) n
        CROSS JOIN LATERAL (
            SELECT CASE WHEN n.lease_expires_at > v_now
                             AND CASE WHEN t.lease IS NOT NULL THEN n.lease_id = t.lease
                                      WHEN cardinality(p_required) > 0 THEN n.lease_id = ANY (p_required)
                                      ELSE true END
                        THEN n.lease_id END AS held
        ) x
    ) c
    WHERE (t.status IN ('failed', 'dlq') OR (t.status = 'retry' AND t.error IS NOT NULL))
      AND t.o > c.position AND NOT c.done @> t.o
      AND (c.is_leased OR (NOT c.is_fenced AND t.status = 'dlq'))
    ORDER BY t.part, t.grp, t.o, t.i DESC;
    IF FOUND THEN
        PERFORM queen.forget_attempts(p_partition, p_offset, p_group);
    END IF;
END $$;
