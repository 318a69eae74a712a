-- What other sessions of this database do; up to $1. Statements only of our own, without their values: those of other applications are
-- nobody's business here.
SELECT pid, application_name AS application, state, wait_event_type, wait_event, query_start AS since,
       extract(epoch FROM clock_timestamp() - query_start)::double precision AS seconds, CASE WHEN application_name IN ('queen', 'queen pipeline') THEN left(query, 200) ELSE '' END AS query
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
ORDER BY query_start LIMIT $1
