-- Which of these backends are there, and whether each waits for its client: because it has nothing to do, or because what it
-- has sent is not taken. Null where that is not shown.
SELECT pid, backend_start,
       CASE state WHEN 'idle' THEN true
                  WHEN 'idle in transaction' THEN true
                  WHEN 'idle in transaction (aborted)' THEN true
                  WHEN 'active' THEN coalesce(wait_event_type = 'Client', false) END AS waits
FROM pg_stat_activity WHERE pid = ANY ($1::integer[])
