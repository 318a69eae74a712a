SELECT kind, priority, shown AS status, count(*) AS count, min(created_at) AS oldest, max(created_at) AS newest,
       avg(extract(epoch FROM coalesce(finished_at, clock_timestamp()) - created_at))::float8 AS latency_s
FROM (SELECT o.*, queen.shown_status(o.status, o.next_attempt_at) AS shown FROM queen.operation_queue o) o
GROUP BY kind, priority, shown ORDER BY priority, kind, shown
