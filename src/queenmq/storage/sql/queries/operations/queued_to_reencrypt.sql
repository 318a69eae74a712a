-- The next push of the operation queue after $1 that is still to be stored, or was set aside and may be retried, and has encrypted payloads that
-- do not begin with $2: other keys, or bound to no message. One that runs just now is left out: its server has the payloads already.
SELECT o.id, o.queue_name, o.partition_name, o.transaction_ids, o.payloads, o.encrypted FROM queen.operation_queue o
WHERE o.id > $1::uuid AND o.kind = 'push' AND o.status IN ('pending', 'failed') AND EXISTS (
    SELECT 1 FROM unnest(o.payloads, o.encrypted) AS t (payload, is_encrypted)
    WHERE t.is_encrypted AND substring(t.payload FROM 1 FOR octet_length($2::bytea)) <> $2::bytea)
ORDER BY o.id LIMIT 1
