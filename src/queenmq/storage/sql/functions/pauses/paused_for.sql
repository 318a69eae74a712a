-- What is paused for a group in a queue: all of it, or these partitions (null: none). Reads only; called where the queue has pauses at all.
CREATE OR REPLACE FUNCTION queen.paused_for(p_queue uuid, p_group text, OUT everything boolean, OUT partitions uuid[])
LANGUAGE sql STABLE AS $$
    SELECT coalesce(bool_or(s.partition_name = ''), false), array_agg(p.id) FILTER (WHERE p.id IS NOT NULL)
    FROM queen.pauses s
    LEFT JOIN queen.partitions p ON p.queue_id = s.queue_id AND p.name = s.partition_name
    WHERE s.queue_id = p_queue AND s.consumer_group IN ('', p_group)
$$;
