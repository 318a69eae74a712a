-- What stream engines in clients keep here: their queries, and the state of each by source partition and key.

CREATE TABLE queen.stream_queries (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text COLLATE "C" NOT NULL UNIQUE,
    source_queue  text NOT NULL,
    sink_queue    text,
    config_hash   text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE queen.stream_state (
    query_id      uuid NOT NULL REFERENCES queen.stream_queries (id) ON DELETE CASCADE,
    partition_id  uuid NOT NULL,
    key           text COLLATE "C" NOT NULL,
    value         bytea NOT NULL,           -- the JSON text as it came, UTF-8
    window_end    double precision,         -- the number `windowEnd` of the value, if it has one
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, partition_id, key)
) WITH (fillfactor = 70);
CREATE INDEX stream_state_ripe ON queen.stream_state (query_id, partition_id, window_end) WHERE window_end IS NOT NULL;
CREATE INDEX stream_state_partition ON queen.stream_state (partition_id);
