-- Of some ranges of partitions ($1 ids, $2 first, $3 last) that a read did not find: those that were not deleted by hand.
SELECT t.i, lower(r), upper(r) - 1
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS t (id, first, last, i)
CROSS JOIN LATERAL unnest(int8multirange(int8range(t.first, t.last, '[]')) - queen.deleted_within(t.id, t.first, t.last)) AS r
ORDER BY 1, 2
