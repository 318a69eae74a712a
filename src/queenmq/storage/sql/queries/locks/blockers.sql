-- Who keeps a session ($1) waiting for a lock. A transaction that was prepared for a two-phase commit has no process, only a name.
SELECT a.pid, a.application_name AS application, a.usename AS username, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS open_s, a.query_start, NULL AS prepared
FROM unnest(pg_blocking_pids($1)) AS b (pid)
JOIN pg_stat_activity a ON a.pid = b.pid
UNION ALL
SELECT NULL, NULL, p.owner, NULL, extract(epoch FROM clock_timestamp() - p.prepared)::double precision, NULL, p.gid
FROM pg_prepared_xacts p
WHERE 0 = ANY (pg_blocking_pids($1)) AND p.database = current_database()
