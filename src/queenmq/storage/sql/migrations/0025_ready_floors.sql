-- Where a pop begins to search for ready rows: behind old versions of rows that cannot be removed because somebody holds the horizon (see newest_version_first).

-- No row of the group is ready at a time before `floor`, and none will be (see queen.move_ready_floor). No foreign key: it would lock the
-- queue's row. Each change makes a new generation, so that the newest version is found first.
CREATE TABLE queen.ready_floors (
    queue_id        uuid NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    generation      bigint NOT NULL DEFAULT 0,
    floor           timestamptz NOT NULL,
    moved_at        timestamptz NOT NULL,
    checked_at      timestamptz NOT NULL,               -- everything before the floor was searched, too
    check_cost      interval NOT NULL DEFAULT '0',
    PRIMARY KEY (queue_id, consumer_group, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);

-- Moments of which it is known that every row of partition_consumers that was made ready before them is committed (`passed_at`), and the
-- next one, with the transactions that must end first (`holders`). Only the newest row counts. There is none, and so there are no floors, as
-- long as servers of a version run that does not know them (see newest_keys).
CREATE TABLE queen.ready_fences (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    passed_at   timestamptz,
    pending_at  timestamptz NOT NULL,
    holders     text[] NOT NULL
);
