DELETE FROM queen.pipeline_staged WHERE attempt = $1::bigint AND place >= $2::bigint
