-- How deliveries of a message to a group have failed, the last ten of each. Written only when something fails; they go with their message.
-- Servers of the version before write none.
CREATE TABLE queen.attempts (
    partition_id    uuid NOT NULL,
    "offset"        bigint NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    ended_at        timestamptz NOT NULL,
    outcome         text NOT NULL,      -- `failed`, `retry` or `dlq`, as the consumer said, or `expired`: its lease ended without a word
    error           text,
    lease_id        uuid                -- it says who the consumer was (see queen.consumer_of)
);
CREATE INDEX attempts_message ON queen.attempts (partition_id, "offset", consumer_group, ended_at);

-- Who has popped from a queue for a group, as clients say it of themselves. The ids of leases have the tag.
CREATE TABLE queen.consumers (
    queue_id        uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group  text COLLATE "C" NOT NULL,
    tag             bigint NOT NULL,
    name            text,
    host            text,
    process         text,
    address         text,               -- of the connection; null if another server has forwarded the request
    subject         text,               -- of the token
    since           timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL,
    PRIMARY KEY (queue_id, consumer_group, tag)
) WITH (fillfactor = 70);
