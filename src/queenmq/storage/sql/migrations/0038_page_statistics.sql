-- The statistics of a queue are measured in pages of partitions, a few of them at a time, and summed: so what that costs does not grow with the queue.

-- A page begins after the partition `after` and ends where the next one begins. One row for the partitions themselves, without a group (''), and one
-- for each group. What the columns mean is said at queen.queue_statistics and queen.group_statistics.
CREATE TABLE queen.page_statistics (
    queue_id          uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    after             uuid NOT NULL,
    consumer_group    text COLLATE "C" NOT NULL,
    measured_at       timestamptz NOT NULL,             -- '-infinity': not yet
    partitions        bigint NOT NULL DEFAULT 0,
    total             bigint NOT NULL DEFAULT 0,        -- only without a group
    failed            bigint NOT NULL DEFAULT 0,        -- only without a group
    pending           bigint NOT NULL DEFAULT 0,        -- of a group: its lag
    processing        bigint NOT NULL DEFAULT 0,        -- of a group: its messages under leases
    lagging           bigint NOT NULL DEFAULT 0,        -- these only of a group
    unread            bigint NOT NULL DEFAULT 0,
    leases            bigint NOT NULL DEFAULT 0,
    consumed          bigint NOT NULL DEFAULT 0,
    last_message_at   timestamptz,
    oldest_unread_at  timestamptz,
    last_consumed_at  timestamptz,
    PRIMARY KEY (queue_id, after, consumer_group)
) WITH (fillfactor = 50);
CREATE INDEX page_statistics_oldest ON queen.page_statistics (queue_id, measured_at) WHERE consumer_group = '';

-- When the page was measured that was measured first of all; null if a server of an older version has measured the queue.
ALTER TABLE queen.queue_statistics ADD COLUMN since timestamptz;
