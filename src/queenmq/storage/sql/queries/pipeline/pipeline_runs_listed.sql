-- A page of the runs, newest first, of a job ($1) if it is given. One without a sign of life for five minutes has died without
-- writing its end.
SELECT id, job, queue_name, master, CASE WHEN state = 'running' AND seen_at < clock_timestamp() - interval '5 minutes'
           THEN 'lost' ELSE state END AS state,
       started_at, seen_at, ended_at, rows, options::text AS options, offsets::text AS offsets, summary::text AS summary, error
FROM queen.pipeline_runs
WHERE $1::text IS NULL OR job = $1
ORDER BY started_at DESC LIMIT $2 OFFSET $3
