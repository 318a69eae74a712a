-- Pipelines that `queen pipeline apply` has declared and that supervisors (`queen pipeline run`) keep running.
CREATE TABLE queen.pipelines (
    name          text COLLATE "C" PRIMARY KEY,
    kind          text NOT NULL,
    version       bigint NOT NULL,
    declaration   jsonb NOT NULL,                       -- as it was declared
    reads         text[] COLLATE "C",                   -- the queues that it reads; null: all
    writes        text[] COLLATE "C" NOT NULL,
    state_number  bigint NOT NULL,                      -- grows when the state is given up: each has a checkpoint of its own
    wanted        text NOT NULL CHECK (wanted IN ('running', 'stopped', 'removed')),
    asked         bigint NOT NULL DEFAULT 0,            -- grows when somebody wants it to be started now
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE queen.pipeline_versions (
    name          text COLLATE "C" NOT NULL REFERENCES queen.pipelines (name) ON DELETE CASCADE,
    version       bigint NOT NULL,
    declaration   jsonb NOT NULL,
    state_number  bigint NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
);

-- Which supervisor runs a pipeline. What a driver publishes needs its generation to be the newest (queen.hold_generation).
CREATE TABLE queen.pipeline_leases (
    name         text COLLATE "C" PRIMARY KEY REFERENCES queen.pipelines (name) ON DELETE CASCADE,
    generation   bigint NOT NULL DEFAULT 0,             -- grows with every start, and when the lease is taken
    holder       uuid,
    holder_name  text,                                  -- host and process, for people
    held_until   timestamptz
);

-- What the supervisor and the driver last said.
CREATE TABLE queen.pipeline_states (
    name           text COLLATE "C" PRIMARY KEY REFERENCES queen.pipelines (name) ON DELETE CASCADE,
    state          text NOT NULL DEFAULT 'stopped'
                   CHECK (state IN ('starting', 'running', 'draining', 'waiting', 'failed', 'stopped')),
    version        bigint,                              -- that runs, or ran last
    started_at     timestamptz,
    seen_at        timestamptz,                         -- the driver said that it lives
    starts         bigint NOT NULL DEFAULT 0,
    failures       bigint NOT NULL DEFAULT 0,           -- in a row
    next_start_at  timestamptz,
    error          text,                                -- the last one, also when it runs again
    error_at       timestamptz,
    positions      jsonb NOT NULL DEFAULT '{}',         -- by id of the queue: the sum of the offsets up to which it has read
    covered_until  timestamptz,                         -- everything that was pushed before is done
    rows           bigint NOT NULL DEFAULT 0,           -- since it was declared
    batches        bigint NOT NULL DEFAULT 0,
    rate           double precision                     -- messages a second, over the last minute
) WITH (fillfactor = 50);

-- The newest batches of each.
CREATE TABLE queen.pipeline_batches (
    name        text COLLATE "C" NOT NULL REFERENCES queen.pipelines (name) ON DELETE CASCADE,
    ended_at    timestamptz NOT NULL,
    number      bigint NOT NULL,                        -- Spark's number of it, or the round
    query       text NOT NULL DEFAULT '',               -- of a pipeline with several
    rows        bigint NOT NULL,
    seconds     double precision NOT NULL
);
CREATE INDEX pipeline_batches_newest ON queen.pipeline_batches (name, ended_at DESC);
