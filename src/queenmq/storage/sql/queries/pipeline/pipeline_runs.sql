-- The newest runs. One without a sign of life for five minutes has died without writing its end.
SELECT id, job, queue_name, master, CASE WHEN state = 'running' AND seen_at < clock_timestamp() - interval '5 minutes'
           THEN 'lost' ELSE state END AS state,
       started_at, ended_at, rows, offsets, summary, error
FROM queen.pipeline_runs ORDER BY started_at DESC LIMIT $1
