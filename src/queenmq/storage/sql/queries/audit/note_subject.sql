-- Note at an operation ($1) who has begun it ($2).
UPDATE queen.operation_queue SET subject = $2 WHERE id = $1::uuid AND subject IS NULL
