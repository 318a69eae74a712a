-- Second entries beside positions and dead letters, so that an audit can hold them to account.

-- Offsets that a group passed without consuming them (where it started, seeks, what was deleted or expired unread), less those that it was
-- given again. position and what is in done are together never more than total_consumed + passed_over.
ALTER TABLE queen.partition_consumers ADD COLUMN passed_over bigint NOT NULL DEFAULT 0;

UPDATE queen.partition_consumers c
SET passed_over = n.finished - c.total_consumed
FROM (
    SELECT c.partition_id, c.consumer_group, greatest(c.position, l.first_offset - 1) + l.holes
           + (SELECT coalesce(sum(upper(d) - lower(d)), 0) FROM unnest(c.done) AS d) AS finished
    FROM queen.partition_consumers c JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
) n
WHERE c.partition_id = n.partition_id AND c.consumer_group = n.consumer_group AND n.finished > c.total_consumed;

-- The dead letters that Queen has written and not taken back; `offsets` is the sum of theirs.
CREATE TABLE queen.dead_letter_accounts (
    partition_id    uuid NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    queue_id        uuid NOT NULL,
    letters         bigint NOT NULL,
    offsets         numeric NOT NULL,
    PRIMARY KEY (partition_id, consumer_group)
) WITH (fillfactor = 50);
CREATE INDEX dead_letter_accounts_queue ON queen.dead_letter_accounts (queue_id);

INSERT INTO queen.dead_letter_accounts (partition_id, consumer_group, queue_id, letters, offsets)
SELECT partition_id, consumer_group, min(queue_id::text)::uuid, count(*), sum("offset")
FROM queen.dead_letter_queue GROUP BY partition_id, consumer_group;
