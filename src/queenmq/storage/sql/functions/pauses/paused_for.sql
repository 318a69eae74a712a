-- What is paused for a group in a queue: all of it, or these partitions (null: none). `probes`: the breaker of the group has paused it, and lets a batch
-- through now. Reads only; called where the queue has pauses or policies at all.
CREATE OR REPLACE FUNCTION queen.paused_for(p_queue uuid, p_group text, OUT everything boolean, OUT partitions uuid[], OUT probes boolean)
LANGUAGE sql STABLE AS $$
    SELECT coalesce(bool_or(s.partition_name = ''), false) OR coalesce(max(b.probe_at) > clock_timestamp(), false),
           array_agg(p.id) FILTER (WHERE p.id IS NOT NULL), max(b.probe_at) <= clock_timestamp() IS TRUE
    FROM (VALUES (1)) AS one (row)
    LEFT JOIN queen.pauses s ON s.queue_id = p_queue AND s.consumer_group IN ('', p_group)
    LEFT JOIN queen.partitions p ON p.queue_id = s.queue_id AND p.name = s.partition_name
    LEFT JOIN queen.breakers b ON b.queue_id = p_queue AND b.consumer_group = p_group AND b.opened_at IS NOT NULL
$$;
