-- $6 is the lock_timeout of the call, $7 how many rows it makes, $8 whether it only goes on.
SELECT queen.subscribe($1, $2, $3, $4, $5, $7, $8) FROM (SELECT set_config('lock_timeout', $6, true) AS done) t WHERE t.done IS NOT NULL
