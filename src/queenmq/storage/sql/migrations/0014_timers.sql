-- Messages that are pushed at a later moment, once or again and again.
-- The primary key is what a caller names a timer by. deliver_at is the moment that was asked for; next_attempt_at is when a server
-- pushes it, which is later only after an attempt that failed. A timer that is pushed is deleted, or moved to its next moment,
-- in the transaction that stores its message.
CREATE TABLE queen.timers (
    queue_name       text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    partition_name   text COLLATE "C" NOT NULL,
    deliver_at       timestamptz NOT NULL,
    next_attempt_at  timestamptz NOT NULL,
    message_id       uuid NOT NULL,
    transaction_id   text NOT NULL,
    trace_id         uuid,
    producer_sub     text,
    is_encrypted     boolean NOT NULL,
    schedule         text,                      -- a cron expression or @every; null for a timer that is pushed once
    time_zone        text,                      -- of the cron expression
    attempts         integer NOT NULL DEFAULT 0,
    error            text,                      -- of the last attempt
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    payload          bytea NOT NULL,
    PRIMARY KEY (queue_name, key)
);
CREATE INDEX timers_due ON queen.timers (next_attempt_at);
