-- One bounded step of an operation, in the transaction of the caller, who records what comes back: where to go on, how much was done
-- and whether that was all. Of retention also what the server applies after the commit: the queue of which messages were deleted and
-- how many, and the partitions that were dropped. The cursor of a seek in one partition has its position, that of retention its totals.
-- A redrive of some dead letters only (p_parameters: see queen.letter_fits) is a kind of its own: servers of the version before, which would
-- redrive all, fail in it, and it waits for one that knows it.
CREATE OR REPLACE FUNCTION queen.take_step(
    p_kind text, p_queue uuid, p_parameters jsonb, p_cursor jsonb, p_bound timestamptz, p_limit integer,
    OUT cursor jsonb, OUT done bigint, OUT finished boolean,
    OUT retained_in text, OUT retained bigint, OUT dropped_queues text[], OUT dropped_partitions text[])
LANGUAGE plpgsql AS $$
DECLARE
    v_partition text := p_parameters ->> 'partition';
    v_group     text := p_parameters ->> 'group';
    v_after     uuid := (p_cursor ->> 'after')::uuid;
    v_next      uuid;
BEGIN
    CASE p_kind
        WHEN 'delete_queue' THEN
            SELECT r.done, r.finished INTO done, finished FROM queen.remove_queue(p_queue, p_limit) r;
        WHEN 'clear' THEN
            SELECT r.deleted, r.next, r.finished INTO done, v_next, finished
            FROM queen.clear(p_queue, v_partition, v_after, p_bound, p_limit) r;
        WHEN 'seek' THEN
            SELECT r.moved, r.next, r.finished INTO done, v_next, finished
            FROM queen.seek(p_queue, v_partition, v_group, (p_parameters ->> 'at')::timestamptz, v_after, p_bound, p_limit) r;
            IF v_partition IS NOT NULL THEN
                cursor := jsonb_build_object('position', (
                    SELECT c.position FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
                    WHERE p.queue_id = p_queue AND p.name = v_partition AND c.consumer_group = v_group));
            END IF;
        WHEN 'redrive' THEN
            SELECT r.taken, r.next, r.finished INTO done, v_next, finished
            FROM queen.redrive(p_queue, v_partition, v_group, v_after, p_bound, p_limit) r;
        WHEN 'redrive_matching' THEN
            SELECT r.taken, r.finished, jsonb_build_object('after', r.next, 'behind', r.behind) INTO done, finished, cursor
            FROM queen.redrive(p_queue, v_partition, v_group, v_after, p_bound, p_limit, p_parameters, (p_cursor ->> 'behind')::bigint) r;
        WHEN 'retention' THEN
            SELECT r.cursor, r.done, r.finished, r.retained_in, r.retained, r.dropped_queues, r.dropped_partitions
            INTO cursor, done, finished, retained_in, retained, dropped_queues, dropped_partitions
            FROM queen.run_retention(p_parameters, p_cursor) r;
    END CASE;
    cursor := coalesce(cursor, jsonb_build_object('after', v_next));
END $$;
