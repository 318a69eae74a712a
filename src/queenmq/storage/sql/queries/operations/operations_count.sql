-- How many operations match (see operations.sql for $1 to $5), counted up to $6.
SELECT count(*) AS count FROM (
    SELECT 1 FROM queen.operation_queue o
    WHERE ($1::text IS NULL OR queen.shown_status(o.status, o.next_attempt_at) = $1) AND ($2::text IS NULL OR o.queue_name = $2)
      AND ($3::text IS NULL OR o.kind = $3) AND ($4::text IS NULL OR o.partition_name = $4)
      AND ($5::text[] IS NULL OR o.queue_name LIKE ANY ($5))
    LIMIT $6
) m
