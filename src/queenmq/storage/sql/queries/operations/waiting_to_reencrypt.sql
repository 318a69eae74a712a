-- What will become messages and has encrypted payloads that do not begin with $1: pushes of the operation queue, whatever their state, and rows
-- that pipelines have staged. Those of an operation that is completed or cancelled have been removed.
SELECT (SELECT count(*) FROM queen.operation_queue o
        WHERE o.kind = 'push' AND EXISTS (
            SELECT 1 FROM unnest(o.payloads, o.encrypted) AS t (payload, is_encrypted)
            WHERE t.is_encrypted AND substring(t.payload FROM 1 FOR octet_length($1::bytea)) <> $1::bytea)) AS pushes,
       (SELECT count(*) FROM queen.pipeline_chunks c, unnest(c.payloads, c.encrypted) AS t (payload, is_encrypted)
        WHERE t.is_encrypted AND substring(t.payload FROM 1 FOR octet_length($1::bytea)) <> $1::bytea)
       + (SELECT count(*) FROM queen.pipeline_promoting s
          WHERE s.is_encrypted AND substring(s.payload FROM 1 FOR octet_length($1::bytea)) <> $1::bytea)
       + (SELECT count(*) FROM queen.pipeline_staged s
          WHERE s.is_encrypted AND substring(s.payload FROM 1 FOR octet_length($1::bytea)) <> $1::bytea) AS staged
