-- Which of these paths are published.
SELECT path FROM queen.archive_files WHERE lake = $1::text AND path = ANY ($2::text[])
