-- Forget the commits that have nothing left to push.
DELETE FROM queen.outbox_commits c
WHERE c.number = ANY ($1::bigint[]) AND NOT EXISTS (SELECT 1 FROM queen.outbox o WHERE o.sending = c.sending)
