INSERT INTO queen.archive_gaps (lake, queue_name, partition_id, first_offset, last_offset)
SELECT $1::text, $2::text, t.id, t.first, t.last FROM unnest($3::uuid[], $4::bigint[], $5::bigint[]) AS t (id, first, last)
ON CONFLICT (lake, partition_id, first_offset) DO UPDATE SET last_offset = greatest(archive_gaps.last_offset, excluded.last_offset)
