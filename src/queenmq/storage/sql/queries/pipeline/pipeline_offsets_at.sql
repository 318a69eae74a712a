-- For each partition of a queue the last offset whose message is older than the moment.
SELECT p.number, queen.offset_before(p.id, $2::timestamptz) FROM queen.partitions p WHERE p.queue_id = $1::uuid
