-- For pops that only take leases. Their commit is not waited for on disk: a lease that a crash of the database forgets is like one that
-- expired, the message comes again and the old lease's ack is refused. In one transaction with the call, so here and not in
-- the function, whose callers may have other work in theirs.
-- Not with synchronous standbys: after a crash a primary shows what was about to be committed and is on no standby yet, and a pop that
-- did not wait for them would deliver it, although the next failover may take it away.
-- $10 is the lock_timeout of the call. It is an argument's condition so that it is set before.
SELECT p.* FROM (
    SELECT CASE WHEN current_setting('synchronous_standby_names') = '' THEN set_config('synchronous_commit', 'off', true) END AS relaxed,
           set_config('lock_timeout', $10, true) AS done
) t, LATERAL queen.pop(CASE WHEN t.done IS NOT NULL THEN $1::text[] END, $2, $3, $4, $5, $6, $7, $8, $9) p
