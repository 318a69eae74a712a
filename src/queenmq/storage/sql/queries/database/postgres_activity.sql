-- What other sessions of this database do, without the values in their statements; up to $1.
SELECT pid, application_name AS application, state, wait_event_type, wait_event, query_start AS since,
       extract(epoch FROM clock_timestamp() - query_start)::double precision AS seconds, left(query, 200) AS query
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
ORDER BY query_start LIMIT $1
