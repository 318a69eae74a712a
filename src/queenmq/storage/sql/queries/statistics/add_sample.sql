INSERT INTO queen.server_samples (bucket, server, hostname, port, worker_id, pid, samples, figures)
VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6, $7::text::jsonb)
