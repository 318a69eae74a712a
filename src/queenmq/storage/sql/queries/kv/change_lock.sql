-- $8 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT c.* FROM (SELECT set_config('lock_timeout', $8, true) AS done) t, LATERAL queen.change_lock(
    CASE WHEN t.done IS NOT NULL THEN $1::text END, $2, $3, $4, $5, $6, $7) c
