-- Groups that pause themselves when too many of their messages fail. Servers of the version before do not know of it and go on.
ALTER TABLE queen.policies ADD COLUMN breaker text;                 -- as it was given, in JSON; null: this policy says nothing about it
ALTER TABLE queen.policies ADD COLUMN breaker_failures integer;     -- it opens when more than so many …
ALTER TABLE queen.policies ADD COLUMN breaker_of integer;           -- … of the last so many messages have failed,
ALTER TABLE queen.policies ADD COLUMN breaker_pause_ms bigint;      -- and lets a batch through after that time

-- What the last messages of a group came to, and whether that has paused it. No foreign key: it would lock the queue's row.
CREATE TABLE queen.breakers (
    queue_id        uuid NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    outcomes        text NOT NULL DEFAULT '',       -- 0 and 1 for each message that was completed or failed, the oldest first
    opened_at       timestamptz,                    -- null: closed
    reason          text,
    probe_at        timestamptz,                    -- while it is open: when the next batch is let through
    probe_lease     uuid,                           -- the batch that was
    PRIMARY KEY (queue_id, consumer_group)
) WITH (fillfactor = 50, vacuum_truncate = off);

-- Whether there are breakers at all: an ack has to do more for them.
CREATE INDEX CONCURRENTLY policies_breaker ON queen.policies (queue_id) WHERE breaker IS NOT NULL;
