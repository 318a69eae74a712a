-- One bounded step of taking the dead letters of a queue, of one partition (by name) and of one group if given, that were there at p_bound
-- (null: that are there now), and having their messages delivered again: about p_limit letters of the partitions after
-- p_after, in each partition in the order of the offsets. What queen.retry_message says of one holds for each of them; a message
-- that is not stored any more is pushed again, behind the last one of its partition, which is made if it is gone. A lease of
-- the group stays if everything that comes back lies behind it. Letters whose place another message has taken stay (queen.can_return).
-- With p_which only those that queen.letter_fits, among the next 2 * p_limit letters: those that do not fit stay, so that the next step has to go
-- on behind them, in the partition p_after behind the offset p_behind if that is given.
-- Returns how many letters were taken, and whether that was all or after which partition (and offset) to go on. A full queue raises QN004, and a
-- partition with queued pushes lock_not_available: nothing is taken then.
-- Locks: the queue if it has a size limit; then heads by partition, rows of partition_consumers by group, and as queen.push.
CREATE OR REPLACE FUNCTION queen.redrive(
    p_queue uuid, p_partition text, p_group text, p_after uuid, p_bound timestamptz, p_limit integer,
    p_which jsonb DEFAULT NULL, p_behind bigint DEFAULT NULL,
    OUT taken bigint, OUT next uuid, OUT behind bigint, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_name   text;
    v_limited boolean;
    v_place  record;
    v_left   bigint;
    v_room   bigint := 2 * p_limit;     -- letters that may still be read
    v_from   bigint;                    -- those between these two offsets are read now
    v_upto   bigint;
    v_read   bigint := 0;
    v_ids    uuid[];
    v_back   record;
    v_new    record;
    v_push   record;
BEGIN
    taken := 0;
    next := p_after;
    behind := p_behind;
    finished := false;
    PERFORM 1 FROM queen.queues WHERE id = p_queue AND max_size > 0 FOR NO KEY UPDATE;
    v_limited := FOUND;
    SELECT name INTO v_name FROM queen.queues WHERE id = p_queue;
    LOOP
        SELECT d.partition_id AS id, d.partition_name AS name INTO v_place FROM queen.dead_letter_queue d
        WHERE d.queue_id = p_queue
          AND (d.partition_id, d."offset") > (coalesce(next, '00000000-0000-0000-0000-000000000000'), coalesce(behind, 9223372036854775807))
          AND (p_partition IS NULL OR d.partition_name = p_partition) AND (p_group IS NULL OR d.consumer_group = p_group)
          AND (p_bound IS NULL OR d.failed_at <= p_bound)
        ORDER BY d.partition_id, d."offset" LIMIT 1;
        finished := NOT FOUND OR v_name IS NULL;
        v_left := p_limit - taken;
        EXIT WHEN finished OR v_left <= 0 OR v_room <= 0;

        IF p_which IS NOT NULL THEN
            v_from := CASE WHEN v_place.id = next THEN behind ELSE -1 END;
            SELECT max(w."offset"), count(*) INTO v_upto, v_read FROM (
                SELECT d."offset" FROM queen.dead_letter_queue d
                WHERE d.queue_id = p_queue AND d.partition_id = v_place.id AND d."offset" > v_from
                ORDER BY d."offset" FETCH FIRST (v_room) ROWS WITH TIES) w;
            -- The head is locked only for something.
            IF NOT EXISTS (
                SELECT 1 FROM queen.dead_letter_queue d
                WHERE d.queue_id = p_queue AND d.partition_id = v_place.id AND d."offset" > v_from AND d."offset" <= v_upto
                  AND (p_group IS NULL OR d.consumer_group = p_group) AND queen.letter_fits(p_which, d.error_message, d.failed_at))
            THEN
                next := v_place.id;
                behind := CASE WHEN v_read >= v_room THEN v_upto END;
                v_room := v_room - v_read;
                CONTINUE;
            END IF;
        END IF;

        PERFORM 1 FROM queen.partition_lookup WHERE partition_id = v_place.id FOR NO KEY UPDATE;
        -- All letters of a message are taken together, so that none of them meets the message that is pushed for another one.
        v_ids := ARRAY(
            SELECT d.id FROM queen.dead_letter_queue d
            WHERE d.queue_id = p_queue AND d.partition_id = v_place.id AND (p_group IS NULL OR d.consumer_group = p_group)
              AND (p_bound IS NULL OR d.failed_at <= p_bound)
              AND (p_which IS NULL OR d."offset" > v_from AND d."offset" <= v_upto AND queen.letter_fits(p_which, d.error_message, d.failed_at))
              AND queen.can_return(p_queue, v_place.id, v_place.name, d.transaction_id, d."offset")
            ORDER BY d."offset" FETCH FIRST (v_left) ROWS WITH TIES
            FOR UPDATE);

        PERFORM 1 FROM queen.partition_consumers c
        WHERE c.partition_id = v_place.id
          AND c.consumer_group IN (SELECT d.consumer_group FROM queen.dead_letter_queue d WHERE d.id = ANY (v_ids))
        ORDER BY c.consumer_group FOR NO KEY UPDATE;
        WITH back AS MATERIALIZED (
            SELECT d.consumer_group, min(m."offset") AS first, range_agg(int8range(m."offset", m."offset", '[]')) AS offsets
            FROM queen.dead_letter_queue d
            -- LIMIT keeps the planner at one probe a letter, whatever it believes about the tables.
            CROSS JOIN LATERAL (
                SELECT m."offset" FROM queen.messages m
                WHERE m.partition_id = d.partition_id AND m.transaction_id = d.transaction_id LIMIT 1
            ) m
            WHERE d.id = ANY (v_ids)
            GROUP BY d.consumer_group
        ), standing AS MATERIALIZED (
            SELECT b.*, c.lease_id IS NOT NULL AND c.lease_expires_at > clock_timestamp()
                        AND upper(c.lease_offsets) <= b.first AS keeps
            FROM back b
            JOIN queen.partition_consumers c ON c.partition_id = v_place.id AND c.consumer_group = b.consumer_group
        ), grown AS (
            INSERT INTO queen.queue_size_changes (queue_id, added)
            SELECT p_queue, max(c.position - s.first + 1) FROM standing s
            JOIN queen.partition_consumers c ON c.partition_id = v_place.id AND c.consumer_group = s.consumer_group
            WHERE c.position >= s.first AND v_limited
            HAVING count(*) > 0
        ), moved AS (
            UPDATE queen.partition_consumers c
            SET position = least(c.position, s.first - 1),
                done = (c.done + CASE WHEN c.position >= s.first THEN int8multirange(int8range(s.first, c.position, '[]'))
                                      ELSE '{}' END) - s.offsets,
                passed_over = c.passed_over - queen.count_offsets(
                    s.offsets * (c.done + int8multirange(int8range(NULL, c.position, '(]')))),
                retry_at = CASE WHEN s.keeps THEN c.retry_at END,
                ready_at = CASE WHEN s.keeps THEN c.ready_at ELSE clock_timestamp() END,
                lease_id = CASE WHEN s.keeps THEN c.lease_id END,
                lease_expires_at = CASE WHEN s.keeps THEN c.lease_expires_at END,
                lease_offsets = CASE WHEN s.keeps THEN c.lease_offsets END
            FROM standing s
            WHERE c.partition_id = v_place.id AND c.consumer_group = s.consumer_group
            RETURNING c.consumer_group, s.offsets, c.failures
        )
        SELECT array_agg(consumer_group) AS groups, array_agg(offsets) AS offsets INTO v_back
        FROM moved WHERE failures IS NOT NULL;
        PERFORM queen.forget_failures(v_place.id, ARRAY[t.grp], t.offsets) FROM unnest(v_back.groups, v_back.offsets) AS t (grp, offsets);

        SELECT array_agg(n.transaction_id ORDER BY n."offset", n.transaction_id) AS transactions,
               array_agg(n.trace_id ORDER BY n."offset", n.transaction_id) AS traces,
               array_agg(n.payload ORDER BY n."offset", n.transaction_id) AS payloads,
               array_agg(n.is_encrypted ORDER BY n."offset", n.transaction_id) AS encrypted,
               array_agg(n.producer_sub ORDER BY n."offset", n.transaction_id) AS producers,
               array_agg(n.headers ORDER BY n."offset", n.transaction_id) AS headers,
               array_agg(queen.uuid7()) AS ids, array_agg(1) AS targets, count(*)::integer AS count
        INTO v_new FROM (
            SELECT DISTINCT ON (d.transaction_id) d.* FROM queen.dead_letter_queue d
            LEFT JOIN LATERAL (
                SELECT true AS there FROM queen.messages m
                WHERE m.partition_id = d.partition_id AND m.transaction_id = d.transaction_id LIMIT 1
            ) m ON true
            WHERE d.id = ANY (v_ids) AND m.there IS NULL
            ORDER BY d.transaction_id, d.failed_at DESC
        ) n;
        IF v_new.count > 0 THEN
            v_push := queen.push(ARRAY[v_name], ARRAY[v_place.name], NULL, v_new.targets,
                                 ARRAY(SELECT generate_series(1, v_new.count)), v_new.ids, v_new.transactions, v_new.traces,
                                 v_new.payloads, v_new.encrypted, v_new.producers, v_new.headers);
            IF v_push.refused IS NOT NULL THEN
                RAISE SQLSTATE 'QN004' USING MESSAGE = 'the queue is full: the messages would exceed its max capacity (maxSize)';
            END IF;
            IF v_push.duplicate_index IS NOT NULL THEN
                RAISE lock_not_available USING MESSAGE = 'a message of the same key came to the new partition meanwhile';
            END IF;
        END IF;
        IF p_which IS NOT NULL AND cardinality(v_ids) >= v_left THEN
            v_upto := (SELECT max(d."offset") FROM queen.dead_letter_queue d WHERE d.id = ANY (v_ids));
            v_read := v_room;
        END IF;
        PERFORM queen.forget_letters(v_ids);
        taken := taken + cardinality(v_ids);
        EXIT WHEN p_which IS NULL AND cardinality(v_ids) >= v_left;
        next := v_place.id;
        behind := CASE WHEN v_read >= v_room THEN v_upto END;
        v_room := v_room - v_read;
    END LOOP;
END $$;
