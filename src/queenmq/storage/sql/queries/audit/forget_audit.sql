-- Delete rows of the audit log that are older than $1 days, and the oldest beyond $2 rows.
DELETE FROM queen.audit_log
WHERE at < clock_timestamp() - make_interval(days => $1) OR id <= (SELECT max(id) FROM queen.audit_log) - $2::bigint
