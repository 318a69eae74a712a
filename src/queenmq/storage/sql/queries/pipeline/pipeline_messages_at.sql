-- Which messages have some offsets ($2 numbers, $3 offsets) of a queue's partitions; none for those that are gone.
SELECT p.number, p.name, m."offset", m.id
FROM unnest($2::bigint[], $3::bigint[]) AS t (number, place)
JOIN queen.partitions p ON p.queue_id = $1::uuid AND p.number = t.number
JOIN queen.messages m ON m.partition_id = p.id AND m."offset" = t.place
