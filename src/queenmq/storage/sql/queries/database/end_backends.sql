-- End these backends and wait for that, each for at most so many milliseconds. Those that are gone are left alone, and so are others that
-- have got their process ids since.
SELECT pg_terminate_backend(a.pid, $3) AS gone
FROM unnest($1::integer[], $2::timestamptz[]) AS t (pid, backend_start)
JOIN pg_stat_activity a ON a.pid = t.pid AND a.backend_start = t.backend_start
