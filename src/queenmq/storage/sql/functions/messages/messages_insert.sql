-- Keep partition_lookup right and make the partition claimable for the groups that had read everything, in the
-- same transaction, for every way a row gets into queen.messages.
-- Locks, in this order: rows of partition_lookup by partition, rows of partition_ages, rows of partition_consumers by (partition, group).
-- A writer that brings its own offsets (queen.push) must hold the partition's lookup row since before it chose them.
CREATE OR REPLACE FUNCTION queen.on_messages_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_partitions uuid[];
    v_filled     uuid[];        -- those that were empty
    v_since      timestamptz;
    v_inserted   integer;
    v_updated    integer;
BEGIN
    -- With an older snapshot the groups that became idle meanwhile would be overlooked and sleep on.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING MESSAGE = 'queen.messages must be written in READ COMMITTED transactions';
    END IF;

    -- The newest id comes from the same pass: a join of new_messages with itself would be planned for the rows of the first
    -- statement of the session, as a nested loop, and be quadratic for later ones.
    WITH heads AS (
        SELECT partition_id, min("offset") AS first_new, max("offset") AS last_new, min(created_at) AS since,
               count(*) AS added, max(created_at) AS at, (array_agg(id ORDER BY "offset" DESC))[1] AS last_id
        FROM new_messages GROUP BY partition_id
    ), updated AS (
        UPDATE queen.partition_lookup l
        SET last_offset = h.last_new, last_message_id = h.last_id, last_message_at = greatest(h.at, l.last_message_at)
        FROM heads h
        WHERE l.partition_id = h.partition_id
          AND h.last_new - h.first_new + 1 = h.added
          AND h.first_new = l.last_offset + 1
        RETURNING l.partition_id, h.since, l.first_offset = h.first_new AS was_empty
    )
    SELECT (SELECT count(*) FROM heads), count(*), array_agg(partition_id), array_agg(partition_id) FILTER (WHERE was_empty), min(since)
    INTO v_inserted, v_updated, v_partitions, v_filled, v_since FROM updated;

    IF v_updated < v_inserted THEN
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
        WHERE partition_id = ANY (v_partitions) AND unread_at = 'infinity';
    END IF;

    -- Offsets were allocated in this transaction: the rows come from an INSERT of somebody else, who does not know of maxSize.
    IF current_setting('queen.allocated', true) <> '' THEN
        INSERT INTO queen.queue_size_changes (queue_id, added)
        SELECT q.id, count(*) FROM new_messages n
        JOIN queen.partition_lookup l ON l.partition_id = n.partition_id
        JOIN queen.queues q ON q.id = l.queue_id AND q.max_size > 0
        GROUP BY q.id;
    END IF;

    -- CASE keeps the planner from the index of ready_at, which has an entry for every idle row, and for its old versions.
    PERFORM 1 FROM queen.partition_consumers
    WHERE partition_id = ANY (v_partitions) AND CASE WHEN ready_at IS NULL THEN true END
    ORDER BY partition_id, consumer_group FOR NO KEY UPDATE;
    IF FOUND THEN
        UPDATE queen.partition_consumers c
        SET ready_at = clock_timestamp() + make_interval(secs => greatest(q.delayed_processing_s, q.window_buffer_s))
        FROM queen.queues q
        WHERE c.partition_id = ANY (v_partitions) AND CASE WHEN c.ready_at IS NULL THEN true END AND q.id = c.queue_id;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER messages_insert AFTER INSERT ON queen.messages
    REFERENCING NEW TABLE AS new_messages
    FOR EACH STATEMENT EXECUTE FUNCTION queen.on_messages_insert();
