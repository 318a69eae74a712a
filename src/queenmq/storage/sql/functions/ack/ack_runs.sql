-- Apply a merged batch of acknowledgements that come in runs: messages of one partition, group and lease of which the same is said.
-- The arrays run in parallel, one element a run. p_transactions has the transaction ids of a run, with U+001F between them if p_count,
-- their number, is more than 1. A run that completes exactly what its lease has delivered and not finished, in the order of the
-- offsets, finishes the lease without looking up each message (queen.finish_leased). All others go through queen.ack.
-- Returns a row without item for each run of the first kind, and for the others one for each of its messages, in order.
-- Locks: rows of partition_consumers by (partition, group); then what queen.finish_leased and queen.ack take.
CREATE OR REPLACE FUNCTION queen.ack_runs(
    p_partition uuid[], p_group text[], p_lease uuid[], p_status text[], p_error text[], p_count integer[], p_transactions text[])
RETURNS TABLE (run integer, item integer, problem text, queue_name text, partition_name text, consumer_group text,
               lease_released boolean, dead_lettered boolean)
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_whole  boolean[];     -- one element a run
    v_parts  uuid[];        -- the positions of the whole leases
    v_groups text[];
    v_counts bigint[];
    r        record;
BEGIN
    PERFORM 1
    FROM (SELECT DISTINCT part, grp COLLATE "C" AS grp FROM unnest(p_partition, p_group) AS u (part, grp) ORDER BY part, grp) t
    CROSS JOIN LATERAL (
        SELECT 1 FROM queen.partition_consumers c
        WHERE c.partition_id = t.part AND c.consumer_group = t.grp ORDER BY c.generation DESC LIMIT 1 FOR NO KEY UPDATE
    ) c;

    WITH judged AS MATERIALIZED (
        SELECT t.i, t.part, t.grp, t.n, coalesce(
            t.n = (SELECT sum(upper(o) - lower(o)) FROM unnest(c.lease_offsets) AS o)
            AND t.names = (
                SELECT string_agg(m.transaction_id, U&'\001F' ORDER BY m."offset") FROM queen.messages m
                WHERE m.partition_id = c.partition_id AND c.lease_offsets @> m."offset"
                  AND m."offset" >= lower(c.lease_offsets) AND m."offset" < upper(c.lease_offsets)
                HAVING count(*) = t.n)
            AND EXISTS (SELECT 1 FROM queen.queues q WHERE q.id = c.queue_id AND q.name IS NOT NULL), false) AS whole
        FROM unnest(p_partition, p_group, p_lease, p_status, p_count, p_transactions)
             WITH ORDINALITY AS t (part, grp, lease, status, n, names, i)
        LEFT JOIN LATERAL (
            SELECT n.partition_id, n.queue_id, n.lease_id, n.lease_expires_at, n.lease_offsets FROM queen.partition_consumers n
            WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
        ) c ON c.lease_id = t.lease AND c.lease_expires_at > clock_timestamp() AND t.status IN ('completed', 'success')
    ), place AS MATERIALIZED (
        -- Where something else is said, too, every message is judged by itself.
        SELECT part, grp, min(n) AS n FROM judged GROUP BY part, grp HAVING bool_and(whole)
    )
    SELECT (SELECT array_agg(p.part IS NOT NULL ORDER BY j.i) FROM judged j LEFT JOIN place p USING (part, grp)),
           (SELECT array_agg(part) FROM place), (SELECT array_agg(grp) FROM place), (SELECT array_agg(n) FROM place)
    INTO v_whole, v_parts, v_groups, v_counts;

    IF v_parts IS NOT NULL THEN
        PERFORM queen.finish_leased(v_parts, v_groups, v_counts);
        RETURN QUERY
        SELECT t.i::integer, NULL::integer, NULL::text, q.name, p.name, t.grp, true, false
        FROM unnest(p_partition, p_group, v_whole) WITH ORDINALITY AS t (part, grp, whole, i)
        JOIN queen.partitions p ON p.id = t.part
        JOIN queen.queues q ON q.id = p.queue_id
        WHERE t.whole;
        IF true = ALL (v_whole) THEN
            RETURN;
        END IF;
    END IF;

    SELECT array_agg(t.i::integer ORDER BY t.i, u.j) AS runs, array_agg(u.j::integer ORDER BY t.i, u.j) AS items,
           array_agg(t.part ORDER BY t.i, u.j) AS parts, array_agg(u.name ORDER BY t.i, u.j) AS names,
           array_agg(t.grp ORDER BY t.i, u.j) AS groups, array_agg(t.lease ORDER BY t.i, u.j) AS leases,
           array_agg(t.status ORDER BY t.i, u.j) AS statuses, array_agg(t.error ORDER BY t.i, u.j) AS errors
    INTO r
    FROM unnest(p_partition, p_group, p_lease, p_status, p_error, p_count, p_transactions, v_whole)
         WITH ORDINALITY AS t (part, grp, lease, status, error, n, names, whole, i)
    CROSS JOIN LATERAL unnest(CASE WHEN t.n = 1 THEN ARRAY[t.names] ELSE string_to_array(t.names, U&'\001F') END)
               WITH ORDINALITY AS u (name, j)
    WHERE NOT t.whole;
    RETURN QUERY
    SELECT r.runs[a.index], r.items[a.index], a.problem, a.queue_name, a.partition_name, a.consumer_group,
           a.lease_released, a.dead_lettered
    FROM queen.ack(r.parts, r.names, r.groups, r.leases, r.statuses, r.errors) a;
END $$;
