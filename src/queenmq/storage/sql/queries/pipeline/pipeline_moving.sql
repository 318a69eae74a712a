-- The driver of an epoch that is decided says that it still moves it.
UPDATE queen.pipeline_commits SET committed_at = clock_timestamp() WHERE sink = $1 AND epoch = $2 AND promotion IS NOT NULL
