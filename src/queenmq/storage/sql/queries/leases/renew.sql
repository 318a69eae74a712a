-- $3 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT r.* FROM (SELECT set_config('lock_timeout', $3, true) AS done) t, LATERAL queen.renew(
    CASE WHEN t.done IS NOT NULL THEN $1::uuid[] END, $2) r
