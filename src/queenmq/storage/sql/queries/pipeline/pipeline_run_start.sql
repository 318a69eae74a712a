INSERT INTO queen.pipeline_runs (id, job, queue_name, master, options) VALUES ($1, $2, $3, $4, $5::jsonb)
