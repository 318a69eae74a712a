-- $9 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT f.* FROM (SELECT set_config('lock_timeout', $9, true) AS done) t, LATERAL queen.finish_leases(
    CASE WHEN t.done IS NOT NULL THEN $1::uuid[] END, $2, $3, $4, $5, $6, $7, $8) f
