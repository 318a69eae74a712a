-- The positions of a group in a queue, described by queen.describe_position, in the order in which a pop comes to them: one partition
-- (p_partition), or those p_limit first that have something unread, and the first that a pop gets something from; what is left of
-- p_limit is filled with partitions that are read to the end. A group that is not registered (see queen.groups_of) is subscribed to
-- the other partitions by its next pop of any partition, so these are among them.
-- `more`: there are more than were read, so that the first of those that were not begun need not be the first of all.
-- Reads usually p_limit partitions, and 500 that were not begun; more, up to 10,000, as long as there is nothing for a pop among them.
-- Locks nothing.
CREATE OR REPLACE FUNCTION queen.list_positions(p_queue uuid, p_group text, p_partition uuid, p_new boolean, p_limit integer)
RETURNS TABLE (
    partition_id uuid, partition text, more boolean, started boolean, read_upto bigint, first_offset bigint, last_offset bigint,
    last_message_at timestamptz, ready_at timestamptz, lease_id uuid, lease_expires_at timestamptz, leased bigint, retry_at timestamptz,
    last_consumed_at timestamptz, total_consumed bigint, unread bigint, expired bigint, due bigint, ready bigint,
    due_since timestamptz, next_offset bigint, next_transaction text, next_created_at timestamptz, attempts integer, doomed text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_queue  queen.queues;
    v_now    timestamptz := clock_timestamp();
    v_row    record;
    v_described record;
    v_ids    uuid[] := '{}';
    v_awake  timestamptz[] := '{}';
    v_ready  boolean[] := '{}';
    v_kept   integer := 0;
    v_read   integer := 0;
    v_found  boolean := false;
    v_more   boolean := false;
BEGIN
    SELECT * INTO v_queue FROM queen.queues q WHERE q.id = p_queue;
    IF p_partition IS NOT NULL THEN
        v_ids := ARRAY[p_partition];
    ELSE
        FOR v_row IN
            SELECT c.partition_id, c.ready_at FROM queen.partition_consumers c
            WHERE c.queue_id = p_queue AND c.consumer_group = p_group AND c.ready_at IS NOT NULL ORDER BY c.ready_at
        LOOP
            EXIT WHEN v_kept >= p_limit AND (v_found OR v_row.ready_at > v_now);
            v_read := v_read + 1;
            IF v_read > 10000 THEN
                v_more := true;
                EXIT;
            END IF;
            v_described := queen.describe_position(v_queue, v_row.partition_id, p_group, NULL, v_now);
            CONTINUE WHEN v_described.unread = 0 OR (v_kept >= p_limit AND v_described.ready = 0);
            v_ids := v_ids || v_row.partition_id;
            v_awake := v_awake || v_row.ready_at;
            v_ready := v_ready || (v_described.ready > 0);
            v_kept := v_kept + 1;
            v_found := v_found OR v_described.ready > 0;
        END LOOP;
        IF NOT EXISTS (SELECT 1 FROM queen.consumer_groups g
                       WHERE g.queue_name = v_queue.name AND g.name = p_group AND g.registered) THEN
            v_read := 0;
            FOR v_row IN
                SELECT l.partition_id, p.name FROM queen.partition_lookup l JOIN queen.partitions p ON p.id = l.partition_id
                WHERE l.queue_id = p_queue AND l.first_offset <= l.last_offset AND NOT EXISTS (
                    SELECT 1 FROM queen.partition_consumers c
                    WHERE c.partition_id = l.partition_id AND c.consumer_group = p_group)
            LOOP
                v_read := v_read + 1;
                IF v_read > (CASE WHEN v_found THEN 500 ELSE 10000 END) THEN
                    v_more := true;
                    EXIT;
                END IF;
                v_described := queen.describe_position(v_queue, v_row.partition_id, p_group,
                                       queen.start_of(v_queue.name, v_row.name, p_group, p_new, v_now), v_now);
                IF v_described.unread > 0 THEN
                    v_ids := v_ids || v_row.partition_id;
                    v_awake := v_awake || v_described.ready_at;
                    v_ready := v_ready || (v_described.ready > 0);
                    v_found := v_found OR v_described.ready > 0;
                END IF;
            END LOOP;
            SELECT coalesce(array_agg(x.id ORDER BY x.at, x.i), '{}') INTO v_ids FROM (
                SELECT t.*, row_number() OVER (ORDER BY t.at, t.i) AS n,
                       row_number() OVER (ORDER BY t.ready DESC, t.at, t.i) AS first_ready
                FROM unnest(v_ids, v_awake, v_ready) WITH ORDINALITY AS t (id, at, ready, i)
            ) x WHERE x.n <= p_limit OR (x.ready AND x.first_ready = 1);
        END IF;
        v_kept := cardinality(v_ids);
        IF v_kept < p_limit THEN
            v_ids := v_ids || ARRAY(
                SELECT c.partition_id FROM queen.partition_consumers c
                WHERE c.queue_id = p_queue AND c.consumer_group = p_group AND NOT c.partition_id = ANY (v_ids)
                ORDER BY c.ready_at LIMIT p_limit - v_kept);
        END IF;
    END IF;
    RETURN QUERY
    SELECT t.id, p.name, v_more, s.*
    FROM unnest(v_ids) WITH ORDINALITY AS t (id, i)
    CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = t.id LIMIT 1) p
    CROSS JOIN LATERAL queen.describe_position(v_queue, t.id, p_group, queen.start_of(v_queue.name, p.name, p_group, p_new, v_now), v_now) s
    ORDER BY t.i;
END $$;
