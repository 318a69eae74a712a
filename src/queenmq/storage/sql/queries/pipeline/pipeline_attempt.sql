INSERT INTO queen.pipeline_attempts (attempt, sink, epoch) VALUES ($1::bigint, $2::text, $3::bigint) ON CONFLICT DO NOTHING
