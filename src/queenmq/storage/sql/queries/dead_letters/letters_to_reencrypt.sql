-- One step through all dead letters, in the order of their ids: up to $2 letters after $1. Says how many it has examined, up to which
-- one, and which of them are encrypted and do not begin with $3: other keys, or bound to no message.
WITH seen AS MATERIALIZED (
    SELECT d.id, octet_length(d.payload) AS size,
           CASE WHEN d.is_encrypted THEN substring(d.payload FROM 1 FOR octet_length($3::bytea)) <> $3::bytea ELSE false END AS waits
    FROM queen.dead_letter_queue d WHERE d.id > $1::uuid ORDER BY d.id LIMIT $2
)
SELECT count(*) AS examined, (array_agg(id ORDER BY id DESC))[1] AS last_id,
       coalesce(array_agg(id ORDER BY id) FILTER (WHERE waits), '{}') AS ids,
       coalesce(array_agg(size ORDER BY id) FILTER (WHERE waits), '{}') AS sizes
FROM seen
