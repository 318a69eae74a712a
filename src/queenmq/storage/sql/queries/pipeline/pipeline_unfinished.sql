-- Epochs that are decided and that nobody seems to move any more: their drivers died.
SELECT sink, epoch FROM queen.pipeline_commits
WHERE promotion IS NOT NULL AND committed_at < clock_timestamp() - interval '1 minute' ORDER BY committed_at LIMIT 100
