-- What is known of an epoch: rows that it has, or will have, written, its duplicates, and how many of the rows are in the queues by now.
SELECT rows, duplicates, CASE WHEN promotion IS NULL THEN rows ELSE promoted - duplicates END
FROM queen.pipeline_commits WHERE sink = $1 AND epoch = $2
