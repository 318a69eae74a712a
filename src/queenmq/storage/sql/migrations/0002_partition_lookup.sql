-- The head of each partition moves to a table of its own: narrow rows that a push locks and updates in place.

CREATE TABLE queen.partition_lookup (
    partition_id     uuid PRIMARY KEY REFERENCES queen.partitions (id) ON DELETE CASCADE,
    queue_id         uuid NOT NULL,
    first_offset     bigint NOT NULL DEFAULT 1,      -- nothing below it is stored any more
    last_offset      bigint NOT NULL DEFAULT 0,
    last_message_id  uuid,
    last_message_at  timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX partition_lookup_queue ON queen.partition_lookup (queue_id, partition_id);

INSERT INTO queen.partition_lookup
    (partition_id, queue_id, first_offset, last_offset, last_message_id, last_message_at)
SELECT p.id, p.queue_id, coalesce(oldest."offset", greatest(p.last_offset, newest."offset", 0) + 1),
       greatest(p.last_offset, newest."offset", 0), newest.id, newest.created_at
FROM queen.partitions p
LEFT JOIN LATERAL (
    SELECT m."offset" FROM queen.messages m WHERE m.partition_id = p.id ORDER BY m."offset" LIMIT 1
) oldest ON true
LEFT JOIN LATERAL (
    SELECT m."offset", m.id, m.created_at FROM queen.messages m
    WHERE m.partition_id = p.id ORDER BY m."offset" DESC LIMIT 1
) newest ON true;

ALTER TABLE queen.partitions DROP COLUMN last_offset;
