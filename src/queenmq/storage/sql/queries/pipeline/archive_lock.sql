-- One publication at a time for a queue in a lake.
SELECT 1 FROM queen.archive_lakes WHERE lake = $1::text AND queue_id = $2::uuid FOR UPDATE
