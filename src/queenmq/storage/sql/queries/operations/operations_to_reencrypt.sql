-- How many pushes of the operation queue have encrypted payloads that do not begin with $1 and are still to be stored.
SELECT count(*) FROM queen.operation_queue o
WHERE o.kind = 'push' AND o.status IN ('pending', 'processing') AND EXISTS (
    SELECT 1 FROM unnest(o.payloads, o.encrypted) AS t (payload, is_encrypted)
    WHERE t.is_encrypted AND substring(t.payload FROM 1 FOR octet_length($1::bytea)) <> $1::bytea)
