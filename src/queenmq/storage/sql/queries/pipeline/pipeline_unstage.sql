DELETE FROM queen.pipeline_chunks WHERE attempt = $1::bigint AND place >= $2::bigint
