-- Move positions from where the run found them. Returns those that moved: fewer than given means that another run was faster.
INSERT INTO queen.archive_positions AS a (lake, partition_id, position)
SELECT $1::text, t.id, t.upto FROM unnest($2::uuid[], $3::bigint[], $4::bigint[]) AS t (id, before, upto)
WHERE NOT EXISTS (
    SELECT 1 FROM queen.archive_positions o
    WHERE o.lake = $1::text AND o.partition_id = t.id AND o.position > t.before)
ORDER BY t.id
ON CONFLICT (lake, partition_id) DO UPDATE SET position = excluded.position
RETURNING partition_id
