-- Add rows to the audit log, and note at operations who has begun them.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::timestamptz[], $2::timestamptz[], $3::integer[], $4::text[], $5::text[], $6::uuid[], $7::text[], $8::text[],
                         $9::text[], $10::text[], $11::text[], $12::integer[], $13::text[], $14::uuid[], $15::text[])
        AS g (at, until, count, subject, role, token_id, action, target, detail, address, forwarded_for, status, error, operation_id, server)
), begun AS (
    UPDATE queen.operation_queue o SET subject = g.subject FROM given g
    WHERE o.id = g.operation_id AND o.subject IS NULL AND g.subject IS NOT NULL
)
INSERT INTO queen.audit_log (at, until, count, subject, role, token_id, action, target, detail, address, forwarded_for, status, error,
                             operation_id, server)
SELECT * FROM given
