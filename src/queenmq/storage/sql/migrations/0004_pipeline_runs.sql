-- The data pipeline: its runs, what its sink has staged and committed, and what is archived where.

-- A small number for each partition, so that the progress of a stream over many partitions stays a short text.
ALTER TABLE queen.partitions ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY;

ALTER TABLE queen.queues ADD COLUMN archive_before_delete boolean NOT NULL DEFAULT false;

CREATE TABLE queen.pipeline_runs (
    id          uuid PRIMARY KEY,
    job         text NOT NULL,
    queue_name  text COLLATE "C",
    master      text NOT NULL,
    options     jsonb NOT NULL DEFAULT '{}',
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'failed')),
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),     -- the run said that it lives
    ended_at    timestamptz,
    rows        bigint NOT NULL DEFAULT 0,
    offsets     jsonb NOT NULL DEFAULT '{}',                        -- what was covered: partitions, first and last
    summary     jsonb NOT NULL DEFAULT '{}',
    error       text
);
CREATE INDEX pipeline_runs_started ON queen.pipeline_runs (started_at DESC);
CREATE INDEX pipeline_runs_job ON queen.pipeline_runs (job, started_at DESC);

-- One row an epoch that is in the queues. The transaction that inserts it moves the rows; a replayed epoch finds it there.
CREATE TABLE queen.pipeline_commits (
    sink          text COLLATE "C" NOT NULL,
    epoch         bigint NOT NULL,
    rows          bigint NOT NULL DEFAULT 0,
    duplicates    bigint NOT NULL DEFAULT 0,
    committed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, epoch)
);

-- One row a task attempt that stages rows. Those of attempts that did not win are swept.
CREATE TABLE queen.pipeline_attempts (
    attempt     bigint PRIMARY KEY,         -- milliseconds since 1970, then random bits
    sink        text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX pipeline_attempts_sink ON queen.pipeline_attempts (sink, epoch);

-- Unlogged: a crash of PostgreSQL empties it, the commit finds rows missing, and the epoch is written again.
CREATE UNLOGGED TABLE queen.pipeline_staged (
    attempt         bigint NOT NULL,
    place           bigint NOT NULL,        -- task, then row: the order of the data frame
    queue           text COLLATE "C" NOT NULL,
    partition       text COLLATE "C" NOT NULL,
    message_id      text NOT NULL,
    transaction_id  text COLLATE "C",
    trace_id        text,
    is_encrypted    boolean NOT NULL,
    payload         bytea NOT NULL,
    PRIMARY KEY (attempt, place)
);

-- The published files of a lake, and how far each partition is in it. A file that is not here does not count.
CREATE TABLE queen.archive_files (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lake          text COLLATE "C" NOT NULL,
    queue_name    text COLLATE "C" NOT NULL,
    path          text COLLATE "C" NOT NULL,
    run_id        uuid NOT NULL,
    rows          bigint NOT NULL,
    bytes         bigint NOT NULL,
    digest        text NOT NULL,            -- SHA-256 of the file
    first_at      timestamptz NOT NULL,
    last_at       timestamptz NOT NULL,
    published_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (lake, path)
);
CREATE INDEX archive_files_queue ON queen.archive_files (lake, queue_name, id);

CREATE TABLE queen.archive_positions (
    lake          text COLLATE "C" NOT NULL,
    partition_id  uuid NOT NULL REFERENCES queen.partitions (id) ON DELETE CASCADE,
    position      bigint NOT NULL,          -- every message up to here is in published files
    PRIMARY KEY (lake, partition_id)
);
CREATE INDEX archive_positions_partition ON queen.archive_positions (partition_id);

-- Which queues a lake is responsible for: a queue with archiveBeforeDelete waits for all of its lakes.
CREATE TABLE queen.archive_lakes (
    lake        text COLLATE "C" NOT NULL,
    queue_id    uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue_id, lake)
);

-- What the job analytics found, a row per queue, group and minute; the group '' holds what belongs to none.
CREATE TABLE queen.pipeline_analytics (
    queue_name      text COLLATE "C" NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    minute          timestamptz NOT NULL,
    arrived         bigint,
    consumed        bigint,                 -- since the sample before
    total_consumed  bigint,                 -- of the group, when it was sampled
    lag             bigint,
    latency_ms      jsonb,                  -- p50, p95, p99 of push to acknowledgement
    retries         bigint,
    dead_letters    bigint,
    reasons         jsonb,                  -- dead letters by reason
    hottest         jsonb,                  -- partitions with most arrivals
    skew            double precision,       -- arrivals of the hottest partition over the mean
    PRIMARY KEY (queue_name, consumer_group, minute)
);
CREATE INDEX pipeline_analytics_minute ON queen.pipeline_analytics (minute DESC);
