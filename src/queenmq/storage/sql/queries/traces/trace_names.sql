-- A page of the names of traces ($1 of them after the first $2), by name; what has a name is counted up to $4.
-- Goes from name to name by index; `total` is how many names there are, counted up to $3.
WITH RECURSIVE names AS (
    (SELECT n.name, 1 AS i FROM queen.message_trace_names n ORDER BY n.name LIMIT 1)
    UNION ALL
    SELECT next.name, names.i + 1 FROM names CROSS JOIN LATERAL (
        SELECT n.name FROM queen.message_trace_names n WHERE n.name > names.name ORDER BY n.name LIMIT 1
    ) next WHERE names.i < $3
), page AS (
    SELECT name FROM names ORDER BY i LIMIT $1 OFFSET $2
)
SELECT page.name, c.traces, c.messages, c.last_seen, (SELECT count(*) FROM names) AS total
FROM page CROSS JOIN LATERAL (
    SELECT count(*) AS traces, count(DISTINCT (t.partition_id, t.transaction_id)) AS messages, max(x.created_at) AS last_seen
    FROM (SELECT n.trace_id, n.created_at FROM queen.message_trace_names n
          WHERE n.name = page.name ORDER BY n.created_at DESC LIMIT $4) x
    JOIN queen.message_traces t ON t.id = x.trace_id
) c
ORDER BY page.name
