-- Returns the transaction that has removed them.
WITH removed AS (
    DELETE FROM queen.outbox o USING unnest($1::bigint[], $2::bigint[]) AS t (sending, position)
    WHERE o.sending = t.sending AND o.position = t.position
)
SELECT pg_current_xact_id()::text::bigint
