-- The newest boot epoch of each server; this one ($1) says that it is still there.
WITH seen AS (
    UPDATE queen.servers SET seen_at = clock_timestamp() WHERE id = $1
), gone AS (
    DELETE FROM queen.servers WHERE seen_at < clock_timestamp() - interval '90 days' AND id <> $1
)
SELECT id, epoch FROM queen.servers
