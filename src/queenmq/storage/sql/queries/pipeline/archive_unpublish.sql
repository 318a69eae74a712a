-- Files that count no more. The positions stay: what was archived once is not archived again.
DELETE FROM queen.archive_files WHERE lake = $1::text AND path = ANY ($2::text[])
