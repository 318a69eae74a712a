INSERT INTO queen.archive_files (lake, queue_name, path, run_id, rows, bytes, digest, first_at, last_at)
SELECT $1::text, $2::text, t.path, $3::uuid, t.rows, t.bytes, t.digest, t.first_at, t.last_at
FROM unnest($4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::timestamptz[], $9::timestamptz[])
     AS t (path, rows, bytes, digest, first_at, last_at)
