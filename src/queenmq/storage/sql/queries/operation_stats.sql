SELECT kind, priority, status, count(*) AS count, min(created_at) AS oldest, max(created_at) AS newest,
       avg(extract(epoch FROM coalesce(finished_at, clock_timestamp()) - created_at))::float8 AS latency_s
FROM queen.operation_queue
GROUP BY kind, priority, status ORDER BY priority, kind, status
