-- How many offsets between two ($3 first, $4 last) of some partitions ($2) a lake lacks because they had been deleted by hand.
SELECT t.id, coalesce(sum(least(g.last_offset, t.last) - greatest(g.first_offset, t.first) + 1), 0)::bigint
FROM unnest($2::uuid[], $3::bigint[], $4::bigint[]) AS t (id, first, last)
JOIN queen.archive_gaps g ON g.lake = $1::text AND g.partition_id = t.id AND g.first_offset <= t.last AND g.last_offset >= t.first
GROUP BY t.id
