-- Finish whole leases, with exceptions. p_lease, p_status and p_error run in parallel, one element a request: what is said of every
-- message that the lease has delivered and that is not finished. The other arrays, one element an exception: the request that it belongs
-- to, its message by transaction id, in a partition or, with null, in any of the lease, and what is said of it instead.
-- A request with an exception that is no message of its lease changes nothing, so that a wrong name completes no message that failed.
-- Of several requests for one lease the first is answered; for the others the lease has ended, as if they had come later.
-- Returns, for a lease that is live, a row for each of its partitions and one for each exception; nothing for one that is not. A
-- problem of an exception is that of its request. A lease that is completed without exceptions costs one update of a row for each
-- partition (queen.finish_leased); the messages of the others go through queen.ack, with the same rules.
-- Locks: rows of partition_consumers by (partition, group); then what queen.finish_leased and queen.ack take.
CREATE OR REPLACE FUNCTION queen.finish_leases(
    p_lease uuid[], p_status text[], p_error text[], p_except_of integer[] DEFAULT '{}', p_except_partition uuid[] DEFAULT '{}',
    p_except_transaction text[] DEFAULT '{}', p_except_status text[] DEFAULT '{}', p_except_error text[] DEFAULT '{}')
RETURNS TABLE (finishing integer, exception integer, problem text, queue_name text, finished_in text, consumer_group text,
               messages integer, dead_lettered integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_plain boolean[];      -- one element a request: completed, without exceptions
    f       record;
    r       record;
    x       record;
BEGIN
    PERFORM 1 FROM queen.partition_consumers c WHERE c.lease_id = ANY (p_lease)
    ORDER BY c.partition_id, c.consumer_group FOR NO KEY UPDATE;

    SELECT array_agg(t.status IN ('completed', 'success') AND NOT t.i = ANY (p_except_of) ORDER BY t.i) INTO v_plain
    FROM unnest(p_status) WITH ORDINALITY AS t (status, i);

    SELECT array_agg(t.i::integer) AS requests, array_agg(c.partition_id) AS parts, array_agg(c.consumer_group) AS groups,
           array_agg((SELECT sum(upper(o) - lower(o)) FROM unnest(c.lease_offsets) AS o)::bigint) AS counts
    INTO f
    FROM (
        SELECT u.lease, min(u.i) AS i FROM unnest(p_lease, v_plain) WITH ORDINALITY AS u (lease, plain, i) WHERE u.plain GROUP BY u.lease
    ) t
    JOIN queen.partition_consumers c ON c.lease_id = t.lease AND c.lease_expires_at > clock_timestamp()
    WHERE EXISTS (SELECT 1 FROM queen.queues q WHERE q.id = c.queue_id AND q.name IS NOT NULL);
    IF f.parts IS NOT NULL THEN
        PERFORM queen.finish_leased(f.parts, f.groups, f.counts);
        RETURN QUERY
        SELECT t.request, NULL::integer, NULL::text, q.name, p.name, t.grp, t.n::integer, 0
        FROM unnest(f.requests, f.parts, f.groups, f.counts) AS t (request, part, grp, n)
        JOIN queen.partitions p ON p.id = t.part
        JOIN queen.queues q ON q.id = p.queue_id;
    END IF;
    IF true = ALL (v_plain) THEN
        RETURN;
    END IF;

    FOR r IN SELECT t.lease, t.status, t.error, t.i::integer AS i
             FROM unnest(p_lease, p_status, p_error, v_plain) WITH ORDINALITY AS t (lease, status, error, plain, i)
             WHERE NOT t.plain
    LOOP
        -- What is said of each message, with the exceptions that it is one of.
        SELECT array_agg(m.partition_id ORDER BY m.partition_id, m."offset") AS parts,
               array_agg(m.transaction_id ORDER BY m.partition_id, m."offset") AS names,
               array_agg(c.consumer_group ORDER BY m.partition_id, m."offset") AS groups,
               array_agg(coalesce(e.status, r.status) ORDER BY m.partition_id, m."offset") AS statuses,
               array_agg(CASE WHEN e.i IS NULL THEN r.error ELSE e.error END ORDER BY m.partition_id, m."offset") AS errors,
               array_agg(e.i ORDER BY m.partition_id, m."offset") AS exceptions
        INTO x
        FROM queen.partition_consumers c
        JOIN queen.queues q ON q.id = c.queue_id AND q.name IS NOT NULL
        JOIN queen.messages m ON m.partition_id = c.partition_id AND c.lease_offsets @> m."offset"
                             AND m."offset" >= lower(c.lease_offsets) AND m."offset" < upper(c.lease_offsets)
        LEFT JOIN LATERAL (
            SELECT min(u.i)::integer AS i, (array_agg(u.status ORDER BY u.i))[1] AS status, (array_agg(u.error ORDER BY u.i))[1] AS error
            FROM unnest(p_except_of, p_except_partition, p_except_transaction, p_except_status, p_except_error)
                 WITH ORDINALITY AS u (request, part, name, status, error, i)
            WHERE u.request = r.i AND u.name = m.transaction_id AND coalesce(u.part, m.partition_id) = m.partition_id
            HAVING count(*) > 0
        ) e ON true
        WHERE c.lease_id = r.lease AND c.lease_expires_at > clock_timestamp();
        CONTINUE WHEN x.parts IS NULL;

        RETURN QUERY
        SELECT r.i, u.i::integer, 'Message not found', NULL::text, NULL::text, NULL::text, 0, 0
        FROM unnest(p_except_of, p_except_partition, p_except_transaction) WITH ORDINALITY AS u (request, part, name, i)
        WHERE u.request = r.i AND NOT EXISTS (
            SELECT 1 FROM unnest(x.parts, x.names) AS t (part, name) WHERE t.name = u.name AND coalesce(u.part, t.part) = t.part);
        CONTINUE WHEN FOUND;

        RETURN QUERY
        WITH acked AS MATERIALIZED (
            SELECT a.*, x.exceptions[a.index] AS e
            FROM queen.ack(x.parts, x.names, x.groups, array_fill(r.lease, ARRAY[cardinality(x.parts)]), x.statuses, x.errors) a
        )
        -- The lease may have expired since it was found live.
        SELECT r.i, NULL::integer, CASE WHEN bool_and(a.problem IS NOT NULL) THEN max(a.problem) END, a.queue_name, a.partition_name,
               a.consumer_group, (count(*) FILTER (WHERE a.problem IS NULL))::integer, (count(*) FILTER (WHERE a.dead_lettered))::integer
        FROM acked a GROUP BY a.queue_name, a.partition_name, a.consumer_group
        UNION ALL
        SELECT r.i, a.e, a.problem, a.queue_name, a.partition_name, a.consumer_group, 1, a.dead_lettered::integer
        FROM acked a WHERE a.e IS NOT NULL;
    END LOOP;
END $$;
