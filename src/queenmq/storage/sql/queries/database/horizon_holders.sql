-- Who keeps VACUUM from removing dead rows of this database: the transactions and snapshots that are older than the present, the oldest first;
-- up to $1. A vacuum and a decoder of the log hold nothing back, and a slot that only keeps old catalogs (catalog_xmin) does not, either.
-- To a role without pg_read_all_stats the state and the age of other roles' sessions are not shown: they are null.
-- has_finished: it has changed positions of groups, as queen.finish does, and so stops the fence of queen.pass_ready_fence.
WITH locks AS MATERIALIZED (
    SELECT * FROM pg_locks l
    WHERE l.granted AND (l.locktype = 'transactionid' OR l.locktype = 'relation' AND l.relation = (
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'queen' AND c.relname = 'partition_consumers'))
), writers AS MATERIALIZED (
    SELECT l.pid, x.transactionid::text AS xid FROM locks l
    LEFT JOIN locks x ON x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction
    WHERE l.locktype = 'relation' AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
)
SELECT kind, name, pid, username, application, state, extract(epoch FROM clock_timestamp() - since)::double precision AS seconds, xid, transactions,
       CASE kind
           WHEN 'session' THEN EXISTS (SELECT 1 FROM writers w WHERE w.pid = h.pid)
           WHEN 'prepared' THEN EXISTS (SELECT 1 FROM writers w WHERE w.xid = h.xid)
           ELSE false
       END AS has_finished
FROM (
    SELECT CASE WHEN r.pid IS NULL THEN 'session' ELSE 'standby' END AS kind, NULL::text AS name, a.pid, a.usename::text AS username,
           a.application_name AS application, a.state, CASE WHEN r.pid IS NULL THEN a.xact_start END AS since,
           CASE WHEN age(a.backend_xid) > coalesce(age(a.backend_xmin), -1) THEN a.backend_xid ELSE a.backend_xmin END::text AS xid,
           greatest(age(a.backend_xid), age(a.backend_xmin)) AS transactions
    FROM pg_stat_activity a LEFT JOIN pg_stat_replication r ON r.pid = a.pid
    WHERE a.pid <> pg_backend_pid() AND (a.datname = current_database() OR r.pid IS NOT NULL)
      AND num_nonnulls(a.backend_xid, a.backend_xmin) > 0
      AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT 'slot', s.slot_name::text, s.active_pid, NULL, NULL, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, s.xmin::text,
           age(s.xmin)
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT 'prepared', p.gid, NULL, p.owner::text, NULL, NULL, p.prepared, p.transaction::text, age(p.transaction)
    FROM pg_prepared_xacts p WHERE p.database = current_database()
) h
ORDER BY transactions DESC, since LIMIT $1
