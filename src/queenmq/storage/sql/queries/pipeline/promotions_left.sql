-- Epochs of sinks that are decided and were not moved on for $1 seconds: their drivers died.
SELECT sink, epoch FROM queen.pipeline_commits
WHERE promotion IS NOT NULL AND committed_at < clock_timestamp() - make_interval(secs => $1) ORDER BY committed_at LIMIT 100
