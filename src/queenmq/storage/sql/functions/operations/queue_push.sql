-- Make the operations of a push for the targets in p_behind: one for each of its requests and targets, in the order of the
-- messages. The other parameters as of queen.push, which is the only caller and holds the heads of the targets.
-- Leaves the messages with an index in p_left_out out. Their priority is that of the queue: from 1, which is done first, for a queue of priority 4
-- or more, to 9; 5 for one of priority 0. (What administers has 10.)
-- Makes none if p_limit or more operations are open, and then returns the targets as overflow. A partition whose oldest operation has
-- failed and waits to be tried again has at most a tenth of p_limit: it may wait for long, and must not use up what others need.
CREATE OR REPLACE FUNCTION queen.queue_push(
    p_behind integer[], p_queues text[], p_partitions text[], p_partition_ids uuid[],
    p_target integer[], p_id uuid[], p_transaction text[], p_trace uuid[],
    p_payload bytea[], p_encrypted boolean[], p_producer text[], p_headers jsonb[], p_request integer[],
    p_limit integer,
    p_left_out integer[],
    OUT targets integer[], OUT requests integer[], OUT ids uuid[], OUT before bigint, OUT overflow integer[])
LANGUAGE plpgsql AS $$
BEGIN
    SELECT count(*) INTO before FROM queen.operation_queue WHERE status IN ('pending', 'processing');
    IF before >= p_limit THEN
        overflow := p_behind;
        RETURN;
    END IF;
    IF p_limit IS NOT NULL AND before > 0 THEN
        -- Only the oldest of a partition is ever tried, so only that one can have failed.
        SELECT array_agg(b.target) INTO overflow FROM unnest(p_behind) AS b (target)
        WHERE EXISTS (
                  SELECT 1 FROM queen.operation_queue o
                  WHERE o.partition_id = p_partition_ids[b.target] AND o.status IN ('pending', 'processing')
                    AND o.next_attempt_at IS NOT NULL)
          AND greatest(1, p_limit / 10) <= (
                  SELECT count(*) FROM queen.operation_queue o
                  WHERE o.partition_id = p_partition_ids[b.target] AND o.status IN ('pending', 'processing'));
    END IF;
    WITH made AS MATERIALIZED (
        SELECT t.target, coalesce(t.request, 1) AS request, min(t.i) AS i, queen.uuid7() AS id,
               array_agg(t.id ORDER BY t.i) AS message_ids, array_agg(t.transaction_id ORDER BY t.i) AS transaction_ids,
               array_agg(t.trace_id ORDER BY t.i) AS trace_ids, array_agg(t.payload ORDER BY t.i) AS payloads,
               array_agg(coalesce(t.is_encrypted, false) ORDER BY t.i) AS encrypted, array_agg(t.producer_sub ORDER BY t.i) AS producers,
               CASE WHEN p_headers IS NOT NULL THEN array_agg(t.headers ORDER BY t.i) END AS headers,
               sum(length(t.payload) + coalesce(octet_length(t.headers::text), 0) + 100) AS size_bytes
        FROM unnest(p_target, p_request, p_id, p_transaction, p_trace, p_payload, p_encrypted, p_producer, p_headers) WITH ORDINALITY
             AS t (target, request, id, transaction_id, trace_id, payload, is_encrypted, producer_sub, headers, i)
        LEFT JOIN unnest(p_left_out) AS x (i) ON x.i = t.i
        WHERE t.target = ANY (p_behind) AND x.i IS NULL AND (overflow IS NULL OR t.target <> ALL (overflow))
        GROUP BY t.target, coalesce(t.request, 1)
    ), inserted AS (
        INSERT INTO queen.operation_queue
            (id, kind, queue_name, partition_name, partition_id,
             message_ids, transaction_ids, trace_ids, payloads, encrypted, producers, headers, size_bytes, items, priority)
        SELECT m.id, 'push', p_queues[m.target], p_partitions[m.target], p_partition_ids[m.target],
               m.message_ids, m.transaction_ids, m.trace_ids, m.payloads, m.encrypted, m.producers, m.headers, m.size_bytes,
               cardinality(m.message_ids), coalesce(5 - greatest(-4, least(4, q.priority)), 5)
        FROM made m LEFT JOIN queen.queues q ON q.name = p_queues[m.target] ORDER BY m.target, m.i
    )
    SELECT array_agg(m.target), array_agg(m.request), array_agg(m.id) INTO targets, requests, ids FROM made m;
END $$;
