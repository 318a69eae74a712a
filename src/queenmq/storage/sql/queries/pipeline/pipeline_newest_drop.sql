SELECT coalesce(max(id), 0) FROM queen.dropped_partitions WHERE queue_id = $1::uuid
