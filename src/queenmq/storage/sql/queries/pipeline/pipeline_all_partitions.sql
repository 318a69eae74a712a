SELECT number, id, name FROM queen.partitions WHERE queue_id = $1::uuid
