-- Replace the encrypted payloads of dead letters ($1: their ids, $2: transaction ids) by $3, which decrypt to the same.
-- Locks: these letters.
UPDATE queen.dead_letter_queue d SET payload = t.payload
FROM unnest($1::uuid[], $2::text[], $3::bytea[]) AS t (id, transaction_id, payload)
WHERE d.id = t.id AND d.transaction_id = t.transaction_id AND d.is_encrypted
RETURNING 1 AS replaced
