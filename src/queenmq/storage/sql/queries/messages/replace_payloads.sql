-- Replace the encrypted payloads of messages ($1: partitions, $2: offsets, $3: transaction ids) by $4, which decrypt to the same.
-- Nothing else of a message changes, so that readers see the one or the other.
-- Locks: these messages.
UPDATE queen.messages m SET payload = t.payload
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bytea[]) AS t (partition_id, "offset", transaction_id, payload)
WHERE m.partition_id = t.partition_id AND m."offset" = t."offset" AND m.transaction_id = t.transaction_id AND m.is_encrypted
RETURNING 1 AS replaced
