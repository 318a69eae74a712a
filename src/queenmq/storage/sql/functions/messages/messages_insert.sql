-- Keep partition_lookup right and make the partition claimable for the groups that had read everything, in the
-- same transaction, for every way a row gets into queen.messages.
-- Locks, in this order: rows of partition_lookup by partition, rows of partition_consumers by (partition, group), rows of partition_ages; then, without
-- waiting, rows of groups that have read everything but what is skipped. A transaction that holds one of these cannot put it to sleep without the head.
-- A writer that brings its own offsets (queen.push) must hold the partition's lookup row since before it chose them.
CREATE OR REPLACE FUNCTION queen.on_messages_insert() RETURNS trigger LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_asleep   tid[];
    v_filled   uuid[];          -- partitions that were empty
    v_since    timestamptz;
    v_inserted bigint;
    v_updated  bigint;
BEGIN
    -- With an older snapshot the groups that became idle meanwhile would be overlooked and sleep on.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING MESSAGE = 'queen.messages must be written in READ COMMITTED transactions';
    END IF;

    -- The newest id comes from the same pass: a join of new_messages with itself would be planned for the rows of the first
    -- statement of the session, as a nested loop, and be quadratic for later ones.
    WITH updated AS (
        UPDATE queen.partition_lookup l
        SET last_offset = h.last_new, last_message_id = h.last_id, last_message_at = greatest(h.at, l.last_message_at),
            generation = h.last_new / 16
        FROM (
            SELECT partition_id, min("offset") AS first_new, max("offset") AS last_new,
                   count(*) AS added, min(created_at) AS since, max(created_at) AS at, (array_agg(id ORDER BY "offset" DESC))[1] AS last_id
            FROM new_messages GROUP BY partition_id
        ) h
        CROSS JOIN LATERAL (
            SELECT x.ctid AS version FROM queen.partition_lookup x
            WHERE x.partition_id = h.partition_id ORDER BY x.generation DESC LIMIT 1
        ) n
        WHERE l.ctid = n.version
          AND h.last_new - h.first_new + 1 = h.added
          AND h.first_new = l.last_offset + 1
        RETURNING l.partition_id, h.first_new - 1 AS before, h.added, h.since, l.first_offset = h.first_new AS was_empty
    )
    SELECT (SELECT count(*) FROM new_messages), (SELECT sum(added) FROM updated), min(t.since),
           array_agg(t.partition_id) FILTER (WHERE t.was_empty), array_agg(c.version) FILTER (WHERE c.version IS NOT NULL)
    INTO v_inserted, v_updated, v_since, v_filled, v_asleep
    FROM updated t      -- by partition: the aggregate with an order above is never hashed, but sorted
    LEFT JOIN LATERAL (
        -- Who sleeps had read everything (see queen.settle): what lies before that in the index of those who sleep are old versions. The
        -- order is that of the index; the positions are the same, so it is by group.
        SELECT s.ctid AS version FROM queen.partition_consumers s
        WHERE s.partition_id = t.partition_id AND s.position >= t.before AND s.ready_at IS NULL
        ORDER BY s.position, s.consumer_group FOR NO KEY UPDATE
    ) c ON true;

    IF v_inserted > coalesce(v_updated, 0) THEN
        RAISE foreign_key_violation USING MESSAGE =
            'a message names an unknown partition, or an offset that does not follow the last one',
            HINT = 'Leave "offset" out of the INSERT: it is allocated.';
    END IF;

    -- What retention and eviction go by. They need a time that is not too late.
    IF v_filled IS NOT NULL THEN
        UPDATE queen.partition_ages SET oldest_at = v_since, unread_at = v_since, idle_since = NULL, kept_at = NULL
        WHERE partition_id = ANY (v_filled);
    END IF;
    IF EXISTS (SELECT 1 FROM queen.queues WHERE max_wait_time_s > 0) THEN
        UPDATE queen.partition_ages SET unread_at = v_since
        WHERE partition_id IN (SELECT partition_id FROM new_messages) AND unread_at = 'infinity';
    END IF;

    -- Offsets were allocated in this transaction: the rows come from an INSERT of somebody else, who does not know of maxSize.
    IF current_setting('queen.allocated', true) <> '' THEN
        INSERT INTO queen.queue_size_changes (queue_id, added)
        SELECT q.id, count(*) FROM new_messages n
        JOIN queen.partition_lookup l ON l.partition_id = n.partition_id
        JOIN queen.queues q ON q.id = l.queue_id AND q.max_size > 0
        GROUP BY q.id;
    END IF;

    IF v_asleep IS NOT NULL THEN
        -- A subquery and not a join, for which the planner might read all rows of the queue; and not at all if no queue has delays.
        UPDATE queen.partition_consumers c
        SET generation = c.generation + 1, ready_at = clock_timestamp() + CASE
                WHEN (SELECT true FROM queen.queues WHERE delayed_processing_s + window_buffer_s > 0 LIMIT 1) THEN (
                    SELECT make_interval(secs => greatest(q.delayed_processing_s, q.window_buffer_s))
                    FROM queen.queues q WHERE q.id = c.queue_id)
                ELSE interval '0' END
        WHERE c.ctid = ANY (v_asleep);
    END IF;
    IF EXISTS (SELECT 1 FROM queen.partition_consumers WHERE skipped IS NOT NULL) THEN
        UPDATE queen.partition_consumers c
        SET generation = c.generation + 1, ready_at = s.due
        FROM (
            SELECT s.ctid AS version, d.due
            FROM queen.partition_consumers s JOIN queen.queues q ON q.id = s.queue_id
            CROSS JOIN LATERAL (
                SELECT greatest(clock_timestamp() + make_interval(secs => greatest(q.delayed_processing_s, q.window_buffer_s)), s.retry_at) AS due
            ) d
            WHERE s.partition_id IN (SELECT partition_id FROM new_messages) AND s.skipped IS NOT NULL AND s.lease_id IS NULL
              AND s.ready_at > d.due
              AND NOT EXISTS (SELECT 1 FROM unnest(s.skipped) AS x WHERE x.parks)
            FOR NO KEY UPDATE OF s SKIP LOCKED
        ) s
        WHERE c.ctid = s.version;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER messages_insert AFTER INSERT ON queen.messages
    REFERENCING NEW TABLE AS new_messages
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_messages_insert();
