-- Lag counts what is due; what is unread counts also what a delay or window keeps back.
ALTER TABLE queen.group_statistics ADD COLUMN unread bigint NOT NULL DEFAULT 0;
UPDATE queen.group_statistics SET unread = lag;
COMMENT ON COLUMN queen.group_statistics.unread IS 'Messages that the group has not finished, in partitions that it has not begun as well.';
COMMENT ON COLUMN queen.group_statistics.lag IS 'Those of them that are due: no delay or window keeps them back, and they have not expired (ttl).';
COMMENT ON COLUMN queen.group_statistics.lagging IS 'Partitions with something due.';
COMMENT ON COLUMN queen.group_statistics.oldest_unread_at IS 'Since when the first of them is due.';
COMMENT ON COLUMN queen.lagging_partitions.oldest_unread_at IS 'Since when the first unread message is due.';
