-- $6 is the lock_timeout of the call.
SELECT queen.subscribe($1, $2, $3, $4, $5) FROM (SELECT set_config('lock_timeout', $6, true) AS done) t WHERE t.done IS NOT NULL
