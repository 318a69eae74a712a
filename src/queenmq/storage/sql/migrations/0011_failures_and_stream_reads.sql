-- How often each unfinished message of a (partition, group) has failed. Null while none has, which is the usual state: then it costs
-- nothing. Else one element for each number of times, with the offsets of the messages that have failed as often; as long as what was
-- delivered and failed, at most, and a whole batch that fails together is one range.
CREATE TYPE queen.failures AS (times integer, offsets int8multirange);
ALTER TABLE queen.partition_consumers ADD COLUMN failures queen.failures[];

-- `attempts` is what `failures` says of the first unfinished message, the head. The number that a row has so far goes to its head.
UPDATE queen.partition_consumers c
SET failures = CASE WHEN l.last_offset > c.position THEN ARRAY[
        (c.attempts, int8multirange(int8range(greatest(c.position + 1, l.first_offset), greatest(c.position + 1, l.first_offset), '[]')))::queen.failures
    ] END,
    attempts = CASE WHEN l.last_offset > c.position THEN c.attempts ELSE 0 END
FROM queen.partition_lookup l
WHERE l.partition_id = c.partition_id AND c.attempts > 0;

-- How new the newest state of a query in a partition is that a stream engine has read. What was changed after that, an engine cannot
-- have taken into account (see queen.is_stale_flush).
CREATE TABLE queen.stream_reads (
    query_id      uuid NOT NULL REFERENCES queen.stream_queries (id) ON DELETE CASCADE,
    partition_id  uuid NOT NULL,
    seen          timestamptz NOT NULL,     -- the largest updated_at of the rows that were read
    PRIMARY KEY (query_id, partition_id)
) WITH (fillfactor = 50);
CREATE INDEX stream_reads_partition ON queen.stream_reads (partition_id);
