INSERT INTO queen.archive_lakes (lake, queue_id) VALUES ($1::text, $2::uuid) ON CONFLICT DO NOTHING
