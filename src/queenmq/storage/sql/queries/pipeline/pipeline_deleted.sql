-- Of some ranges of partitions ($1 ids, $2 first, $3 last): the offsets that were deleted by hand.
SELECT t.id, lower(r), upper(r) - 1
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS t (id, first, last)
CROSS JOIN LATERAL unnest(queen.deleted_within(t.id, t.first, t.last)) AS r
ORDER BY 1, 2
