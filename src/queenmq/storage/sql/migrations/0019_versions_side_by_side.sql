-- Servers of two versions on one database: which functions belong to which version, and which server has which.

-- A row for each version whose functions are there; their names end with `name` (see storage/statements.py).
CREATE TABLE queen.function_sets (
    name            text COLLATE "C" PRIMARY KEY,
    schema_version  integer NOT NULL,
    made_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at         timestamptz NOT NULL DEFAULT clock_timestamp(),     -- when a server or command of this version last started
    leads           boolean NOT NULL DEFAULT false                      -- triggers and public functions are those of this version
);

-- What a server that is in queen.servers with the same epoch is. One that is there without a row here is older than this table.
CREATE TABLE queen.server_versions (
    server_id       text COLLATE "C" PRIMARY KEY,
    epoch           bigint NOT NULL,
    release         text NOT NULL,
    schema_version  integer NOT NULL,
    function_set    text COLLATE "C" NOT NULL,
    alive_for       interval NOT NULL,                  -- after it was last seen it counts as alive for that long
    has_stopped     boolean NOT NULL DEFAULT false
);
