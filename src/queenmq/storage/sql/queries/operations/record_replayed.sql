-- Journalled pushes are stored now: their operations are recorded with the result.
INSERT INTO queen.operation_queue (id, kind, queue_name, partition_name, status, result, created_at, finished_at)
SELECT t.id, 'push', t.queue, t.partition, 'completed', t.result::jsonb, clock_timestamp(), clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS t (id, queue, partition, result)
ON CONFLICT (id) DO NOTHING
