-- A server starts: its boot epoch is greater than any that was given before.
INSERT INTO queen.servers AS s (id, epoch) VALUES ($1, nextval('queen.versions'))
ON CONFLICT (id) DO UPDATE
SET epoch = greatest(excluded.epoch, s.epoch + 1), started_at = clock_timestamp(), seen_at = clock_timestamp()
RETURNING epoch
