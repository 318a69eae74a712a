-- Messages that applications send within their own transactions (queen.send), until a server has pushed them.
-- `sending` is the same for all messages of a transaction, `position` their order in it. outbox_commits numbers the transactions when
-- they commit (outbox_insert), so that messages of a partition are pushed in the order of the commits. Neither has anything to
-- do with transaction ids of PostgreSQL, which begin anew when a dump is restored elsewhere.
CREATE TABLE queen.outbox (
    sending          bigint NOT NULL,
    position         bigint GENERATED ALWAYS AS IDENTITY,
    is_first         boolean NOT NULL,          -- of its transaction
    queue_name       text COLLATE "C" NOT NULL,
    partition_name   text COLLATE "C" NOT NULL,
    message_id       uuid NOT NULL,
    transaction_id   text NOT NULL,
    trace_id         uuid,
    producer_sub     text,                      -- the role of the session
    sent_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    payload          bytea NOT NULL,
    PRIMARY KEY (sending, position)
);
CREATE SEQUENCE queen.outbox_sendings;
CREATE TABLE queen.outbox_commits (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sending  bigint NOT NULL UNIQUE
);
-- Partitions whose messages could not be pushed: they wait here, with all that were sent after them, until the next attempt.
CREATE TABLE queen.outbox_held (
    queue_name       text COLLATE "C" NOT NULL,
    partition_name   text COLLATE "C" NOT NULL,
    attempts         integer NOT NULL DEFAULT 1,
    error            text NOT NULL,
    next_attempt_at  timestamptz NOT NULL,
    PRIMARY KEY (queue_name, partition_name)
);
