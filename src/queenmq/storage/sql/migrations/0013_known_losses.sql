-- What was deleted on purpose is recorded, so that readers of everything (the data pipeline) can distinguish it from loss.

-- Offsets whose messages were deleted by hand, or are known to be missing (queen.accept_gaps): ranges that neither overlap nor touch.
CREATE TABLE queen.deleted_offsets (
    partition_id  uuid NOT NULL,
    first_offset  bigint NOT NULL,
    last_offset   bigint NOT NULL,
    PRIMARY KEY (partition_id, first_offset)
);

-- Until now only the number of such messages was kept. Where as many are missing, it is those.
INSERT INTO queen.deleted_offsets (partition_id, first_offset, last_offset)
SELECT g.partition_id, g.before + 1, g."offset" - 1
FROM (
    SELECT n.*, sum(n."offset" - n.before - 1) OVER (PARTITION BY n.partition_id) AS missing
    FROM (
        SELECT s.partition_id, s.holes, s."offset",
               lag(s."offset", 1, s.first_offset - 1) OVER (PARTITION BY s.partition_id ORDER BY s."offset") AS before
        FROM (
            SELECT l.partition_id, l.holes, l.first_offset, m."offset" FROM queen.partition_lookup l
            JOIN queen.messages m ON m.partition_id = l.partition_id AND m."offset" BETWEEN l.first_offset AND l.last_offset
            WHERE l.holes > 0
            UNION ALL
            SELECT l.partition_id, l.holes, l.first_offset, l.last_offset + 1 FROM queen.partition_lookup l WHERE l.holes > 0
        ) s
    ) n
) g
WHERE g.missing = g.holes AND g."offset" > g.before + 1;

-- Partitions that are gone while their queue is still there: a reader that was away learns from it whether it had read them.
CREATE TABLE queen.dropped_partitions (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,   -- ascending in the order of the commits
    queue_id     uuid NOT NULL,
    number       bigint NOT NULL,
    name         text COLLATE "C" NOT NULL,
    last_offset  bigint,                        -- of the last message that was not deleted by hand; null if it is not known
    dropped_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    forgotten    boolean NOT NULL DEFAULT false -- so old that those of the queue before it are not kept
);
CREATE UNIQUE INDEX dropped_partitions_number ON queen.dropped_partitions (queue_id, number);
CREATE INDEX dropped_partitions_queue ON queen.dropped_partitions (queue_id, id);
CREATE INDEX dropped_partitions_old ON queen.dropped_partitions (dropped_at) WHERE NOT forgotten;
CREATE INDEX dropped_partitions_forgotten ON queen.dropped_partitions (queue_id, id) WHERE forgotten;

-- What an epoch was made of (a digest of the ranges that its sources gave) and a sum over its rows that does not depend on their order: when
-- it comes again, it must be the same.
ALTER TABLE queen.pipeline_commits ADD COLUMN made_of text, ADD COLUMN checksum bigint;

-- Offsets that an archive lacks because their messages had been deleted by hand.
CREATE TABLE queen.archive_gaps (
    lake          text COLLATE "C" NOT NULL,
    partition_id  uuid NOT NULL,
    first_offset  bigint NOT NULL,
    last_offset   bigint NOT NULL,
    queue_name    text COLLATE "C" NOT NULL,
    PRIMARY KEY (lake, partition_id, first_offset)
);
CREATE INDEX archive_gaps_queue ON queen.archive_gaps (lake, queue_name);
