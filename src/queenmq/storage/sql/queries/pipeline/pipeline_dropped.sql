-- Partitions of a queue that were dropped after the record $2, or have one of the numbers $3.
SELECT id, number, name, last_offset, forgotten FROM queen.dropped_partitions
WHERE queue_id = $1::uuid AND (id > $2::bigint OR number = ANY ($3::bigint[]))
ORDER BY id
