-- One of the names $1 that no queue has; null if each has one.
SELECT t.name FROM unnest($1::text[]) AS t (name)
WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.name = t.name) LIMIT 1
