-- What several servers on one database need to agree on: versions that only grow, boot epochs, and the maintenance switches.

CREATE SEQUENCE queen.versions;

-- Drawn under the row's lock (see queen.on_queues_change), so that of two versions of a queue the greater was committed later.
ALTER TABLE queen.queues ADD COLUMN version bigint NOT NULL DEFAULT nextval('queen.versions');

CREATE TABLE queen.servers (
    id          text COLLATE "C" PRIMARY KEY,
    epoch       bigint NOT NULL,            -- grows with every start: packets of an older one are replays
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE queen.maintenance (
    switch      text COLLATE "C" PRIMARY KEY,
    is_on       boolean NOT NULL,
    version     bigint NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
