-- How much the queues of a namespace may hold: the queue of that name, and all whose names begin with it and a dot. Null sets no limit.
CREATE TABLE queen.quotas (
    namespace     text COLLATE "C" PRIMARY KEY,
    max_messages  bigint,
    max_bytes     bigint,
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
