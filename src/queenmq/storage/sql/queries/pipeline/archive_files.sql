SELECT path, rows, bytes, digest, first_at, last_at, id FROM queen.archive_files
WHERE lake = $1::text AND queue_name = $2::text ORDER BY id
