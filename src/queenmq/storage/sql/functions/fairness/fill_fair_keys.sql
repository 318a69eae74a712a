-- Give the rows of the groups in the next partitions of a queue their keys, by the name of the partition: up to p_limit behind p_after. `reached` is the
-- last of them, null if there are no more, or if the separator of the queue is not p_separator (any more). `left_out`: rows that somebody holds were left
-- out. With p_complete, all of them are done.
-- Locks: rows of partition_consumers, never waiting (SKIP LOCKED). With p_complete: the row of the queue FOR KEY SHARE, so that its separator stays.
CREATE OR REPLACE FUNCTION queen.fill_fair_keys(
    p_queue text, p_separator text, p_after text, p_limit integer, p_complete boolean, OUT reached text, OUT left_out boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue uuid;
    v_wrong tid[];
    v_done  integer;
BEGIN
    left_out := false;
    IF p_complete THEN
        PERFORM 1 FROM queen.queues q WHERE q.name = p_queue FOR KEY SHARE;
    END IF;
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue AND q.fair_separator IS NOT DISTINCT FROM p_separator;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_complete THEN
        UPDATE queen.fairness f SET filled = true WHERE f.queue_id = v_queue;
        DELETE FROM queen.fairness f WHERE f.queue_id = v_queue AND f.given IS NULL;
        RETURN;
    END IF;
    SELECT max(x.name) INTO reached FROM (
        SELECT p.name FROM queen.partitions p WHERE p.queue_id = v_queue AND p.name > p_after ORDER BY p.name LIMIT p_limit
    ) x;
    SELECT array_agg(c.ctid) INTO v_wrong FROM queen.partitions p
    JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.fair_key IS DISTINCT FROM queen.fair_key(p.name, p_separator)
    WHERE p.queue_id = v_queue AND p.name > p_after AND p.name <= reached;
    UPDATE queen.partition_consumers c SET fair_key = queen.fair_key(p.name, p_separator), generation = c.generation + 1
    FROM (
        SELECT x.ctid AS version, x.partition_id FROM queen.partition_consumers x WHERE x.ctid = ANY (v_wrong) FOR NO KEY UPDATE SKIP LOCKED
    ) l
    JOIN queen.partitions p ON p.id = l.partition_id
    WHERE c.ctid = l.version;
    GET DIAGNOSTICS v_done = ROW_COUNT;
    left_out := v_done < coalesce(cardinality(v_wrong), 0);
END $$;
