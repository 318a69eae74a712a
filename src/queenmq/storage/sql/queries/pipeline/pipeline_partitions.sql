-- Who the partitions are whose numbers are given.
SELECT number, id, name FROM queen.partitions WHERE queue_id = $1::uuid AND number = ANY ($2::bigint[])
