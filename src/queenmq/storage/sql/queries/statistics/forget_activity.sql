-- Delete up to $2 rows of the history that are older than $1 days; returns how many.
WITH old AS (
    SELECT ctid FROM queen.activity
    WHERE bucket > '-infinity' AND bucket < now() - make_interval(days => $1) LIMIT $2
), gone AS (
    DELETE FROM queen.activity a USING old WHERE a.ctid = old.ctid RETURNING 1
)
SELECT count(*) FROM gone
