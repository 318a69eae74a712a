-- Delete rows of the audit log that are older than $1 days, and the oldest beyond $2 rows of what administrators did, and of the rest: so
-- that nobody else can displace theirs. Counts rows only if there may be too many.
WITH many AS MATERIALIZED (
    SELECT (SELECT max(id) FROM queen.audit_log) - (SELECT min(id) FROM queen.audit_log) >= $2::bigint AS is_so
), last_kept AS MATERIALIZED (
    SELECT of_admin, (
        SELECT a.id FROM queen.audit_log a
        WHERE many.is_so AND (a.role IS NOT DISTINCT FROM 'admin') = of_admin ORDER BY a.id DESC OFFSET $2::bigint LIMIT 1) AS id
    FROM many CROSS JOIN (VALUES (true), (false)) AS kinds (of_admin)
), too_many AS (
    DELETE FROM queen.audit_log a USING last_kept k WHERE a.id <= k.id AND (a.role IS NOT DISTINCT FROM 'admin') = k.of_admin
)
DELETE FROM queen.audit_log WHERE at < clock_timestamp() - make_interval(days => $1)
