-- Forget holds that nothing waits behind (one that has messages is tried every minute at least) and commits that have nothing left; give
-- messages that no commit announces one: the session had chosen its own queen.sending. Returns how many messages wait, counted up to 100,000,
-- and how many partitions are held.
WITH forgotten AS (
    DELETE FROM queen.outbox_held WHERE next_attempt_at < clock_timestamp() - interval '10 minutes'
), emptied AS (
    DELETE FROM queen.outbox_commits c WHERE NOT EXISTS (SELECT 1 FROM queen.outbox o WHERE o.sending = c.sending)
), adopted AS (
    INSERT INTO queen.outbox_commits (sending)
    SELECT DISTINCT o.sending FROM queen.outbox o
    WHERE NOT EXISTS (SELECT 1 FROM queen.outbox_commits c WHERE c.sending = o.sending)
    ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM (SELECT 1 FROM queen.outbox LIMIT 100000) w) AS waiting,
       (SELECT count(*) FROM queen.outbox_held) AS held
