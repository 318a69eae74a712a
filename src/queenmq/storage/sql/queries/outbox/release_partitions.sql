DELETE FROM queen.outbox_held h USING unnest($1::text[], $2::text[]) AS t (queue, partition)
WHERE h.queue_name = t.queue AND h.partition_name = t.partition
