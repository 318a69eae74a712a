SELECT partition_name, problem FROM queen.stale_lookup() WHERE queue_name = $1::text ORDER BY 1
