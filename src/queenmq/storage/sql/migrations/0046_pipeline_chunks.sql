-- What tasks of Spark have staged, many rows in one: arrays that run in parallel, sorted by target, as queen.push gets them. A chunk is written,
-- decided on and removed as one row, where pipeline_staged and pipeline_promoting have a row, an index entry and a deletion for each message.
-- It is logged: of an epoch that can partly be read already, the rest must survive a crash. The two tables before stay for drivers of the
-- version before; what they hold becomes chunks when it is promoted.
CREATE TABLE queen.pipeline_chunks (
    attempt          bigint NOT NULL,
    place            bigint NOT NULL,       -- task, then row: chunks of a bucket are moved in this order
    promotion        bigint,                -- of an epoch that is decided: pipeline_commits.promotion
    bucket             smallint NOT NULL,     -- all rows of a partition are in one bucket; buckets can be moved at the same time
    rows             integer NOT NULL,
    queues           text[] COLLATE "C" NOT NULL,   -- the targets, each once
    partitions       text[] COLLATE "C" NOT NULL,
    counts           integer[] NOT NULL,    -- how many rows each target has
    clear            boolean[] NOT NULL,    -- whether one of them is not encrypted
    message_ids      text[] NOT NULL,
    transaction_ids  text[] COLLATE "C",    -- null if no row has one, as the three below
    trace_ids        text[],
    encrypted        boolean[],
    headers          text[],
    payloads         bytea[] NOT NULL,
    PRIMARY KEY (attempt, place)
);
CREATE INDEX pipeline_chunks_promotion ON queen.pipeline_chunks (promotion, bucket, place) WHERE promotion IS NOT NULL;
-- They are read once: to compress them costs more than it saves.
ALTER TABLE queen.pipeline_chunks
    ALTER COLUMN message_ids SET STORAGE EXTERNAL, ALTER COLUMN transaction_ids SET STORAGE EXTERNAL,
    ALTER COLUMN trace_ids SET STORAGE EXTERNAL, ALTER COLUMN encrypted SET STORAGE EXTERNAL,
    ALTER COLUMN headers SET STORAGE EXTERNAL, ALTER COLUMN payloads SET STORAGE EXTERNAL,
    ALTER COLUMN queues SET STORAGE EXTERNAL, ALTER COLUMN partitions SET STORAGE EXTERNAL,
    ALTER COLUMN counts SET STORAGE EXTERNAL, ALTER COLUMN clear SET STORAGE EXTERNAL;

-- Of an epoch whose rows are in chunks: the place of the last one that was moved, by bucket. Null if they are in pipeline_promoting.
ALTER TABLE queen.pipeline_commits ADD COLUMN buckets bigint[];
