-- $25 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT c.* FROM (SELECT set_config('lock_timeout', $25, true) AS done) t, LATERAL queen.stream_cycle(
    CASE WHEN t.done IS NOT NULL THEN $1::text[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
    $21, $22, $23, $24) c
