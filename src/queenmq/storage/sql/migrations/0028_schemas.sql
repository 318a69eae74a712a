-- JSON Schemas of the messages of queues. Versions count from 1 and stay; schema_rules has the newest, and what is done with it.
CREATE TABLE queen.schemas (
    queue_id    uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    version     integer NOT NULL,
    schema      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by  text,
    PRIMARY KEY (queue_id, version)
);
CREATE TABLE queen.schema_rules (
    queue_id       uuid PRIMARY KEY REFERENCES queen.queues (id) ON DELETE CASCADE,
    version        integer NOT NULL,
    compatibility  text NOT NULL,               -- none, backward, forward or full
    is_checked     boolean NOT NULL,            -- at pushes
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
