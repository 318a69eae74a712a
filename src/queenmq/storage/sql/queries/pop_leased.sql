-- For pops that only take leases. Their commit is not waited for on disk: a lease that a crash of the database forgets is like one that
-- expired, the message comes again and the old lease's ack is refused. In one transaction with the call, so here and not in
-- the function, whose callers may have other work in theirs.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT p.* FROM relaxed, queen.pop($1, $2, $3, $4, $5, $6, $7) p
