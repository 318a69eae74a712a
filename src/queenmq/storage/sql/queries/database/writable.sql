-- Whether this is a PostgreSQL that takes writes: no standby, and not read-only by a setting. And its time, and the process that
-- answers: behind a pooler it is not the one that the connection reports.
SELECT clock_timestamp() AS now,
       NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writable,
       pg_backend_pid() AS pid
