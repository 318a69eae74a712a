-- $21 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT x.* FROM (SELECT set_config('lock_timeout', $21, true) AS done) t, LATERAL queen.transact(
    CASE WHEN t.done IS NOT NULL THEN $1::text[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
    $20) x
