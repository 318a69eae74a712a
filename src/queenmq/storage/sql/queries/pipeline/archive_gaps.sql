-- How many offsets between two ($3 first, $4 last) of some partitions ($2) a lake lacks because they had been deleted by hand or had
-- expired there. Ranges may overlap: each offset counts once.
SELECT t.id, sum(upper(r.span) - lower(r.span))::bigint
FROM unnest($2::uuid[], $3::bigint[], $4::bigint[]) AS t (id, first, last)
CROSS JOIN LATERAL (
    SELECT unnest(range_agg(int8range(greatest(g.first_offset, t.first), least(g.last_offset, t.last) + 1))) AS span
    FROM queen.archive_gaps g
    WHERE g.lake = $1::text AND g.partition_id = t.id AND g.first_offset <= t.last AND g.last_offset >= t.first) AS r
GROUP BY t.id
