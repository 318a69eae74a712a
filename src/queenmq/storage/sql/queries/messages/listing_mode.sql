-- Whether queue mode, and how many named groups, read a queue ($1), or any.
SELECT coalesce(bool_or(g.name = '__QUEUE_MODE__'), false) AS queue_mode,
       count(DISTINCT g.name) FILTER (WHERE g.name <> '__QUEUE_MODE__') AS groups
FROM queen.consumer_groups g WHERE $1::text IS NULL OR g.queue_name = $1
