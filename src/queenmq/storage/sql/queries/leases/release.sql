-- $2 is the lock_timeout of the call.
SELECT queen.release($1) FROM (SELECT set_config('lock_timeout', $2, true) AS done) t WHERE t.done IS NOT NULL
