-- Epochs of sinks with many rows are moved into the queues in steps, so that other pushes to their partitions wait for one step and not for
-- all of them. When an epoch is decided its rows are copied here, in the order in which they are moved. The table is logged, other than
-- pipeline_staged: of an epoch that can partly be read already, the rest must survive a crash.
CREATE TABLE queen.pipeline_promoting (
    promotion       bigint NOT NULL,
    place           bigint NOT NULL,        -- 1, 2, …: by queue and partition, then in the order of the data frame
    queue           text COLLATE "C" NOT NULL,
    partition       text COLLATE "C" NOT NULL,
    message_id      text NOT NULL,
    transaction_id  text COLLATE "C",
    trace_id        text,
    is_encrypted    boolean NOT NULL,
    payload         bytea NOT NULL,
    PRIMARY KEY (promotion, place)
);

-- Of an epoch that is decided and not all moved: its number in pipeline_promoting, and the last place that is moved. All its rows are in `rows`
-- then, less those that were found to be duplicates.
ALTER TABLE queen.pipeline_commits ADD COLUMN promotion bigint, ADD COLUMN promoted bigint NOT NULL DEFAULT 0;
CREATE INDEX pipeline_commits_unfinished ON queen.pipeline_commits (committed_at) WHERE promotion IS NOT NULL;
