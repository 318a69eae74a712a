-- Remove all versions of the schema of a queue ($1), and its rules; no row if it has none. Every server is notified.
WITH gone AS (
    DELETE FROM queen.schema_rules r USING queen.queues q WHERE q.name = $1 AND r.queue_id = q.id RETURNING r.queue_id
), texts AS (
    DELETE FROM queen.schemas s USING gone g WHERE s.queue_id = g.queue_id
)
SELECT pg_notify('queen_schemas', '') FROM gone
