-- Of some ranges of partitions ($2 numbers, $3 first, $4 last) whose messages are gone: how many were not deleted by hand.
SELECT p.number, p.name, t.last - t.first + 1 - queen.count_offsets(queen.deleted_within(p.id, t.first, t.last))
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS t (number, first, last)
JOIN queen.partitions p ON p.queue_id = $1::uuid AND p.number = t.number
ORDER BY p.number
