UPDATE queen.pipeline_runs SET seen_at = clock_timestamp(), rows = $2 WHERE id = $1 AND state = 'running'
