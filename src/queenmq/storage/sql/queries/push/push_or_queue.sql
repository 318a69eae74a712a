-- $17 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT p.* FROM (SELECT set_config('lock_timeout', $17, true) AS done) t, LATERAL queen.push(
    CASE WHEN t.done IS NOT NULL THEN $1::text[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, p_held => $16) p
