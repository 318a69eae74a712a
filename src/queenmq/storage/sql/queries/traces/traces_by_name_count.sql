-- How many traces have a name ($1), counted up to $2.
SELECT count(*) AS traces FROM (SELECT 1 FROM queen.message_trace_names n WHERE n.name = $1 LIMIT $2) x
