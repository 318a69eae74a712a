SELECT o.id, o.kind, o.queue_name, o.partition_name, o.priority, o.status, o.attempts, o.error, o.result::text AS result,
       o.created_at, o.claimed_at, o.finished_at, coalesce(cardinality(o.message_ids), jsonb_array_length(o.result)) AS items,
       (SELECT count(*) FROM queen.operation_queue b
        WHERE o.status IN ('pending', 'processing') AND b.status IN ('pending', 'processing')
          AND (b.priority, b.number) < (o.priority, o.number)) AS before
FROM queen.operation_queue o WHERE o.id = $1
