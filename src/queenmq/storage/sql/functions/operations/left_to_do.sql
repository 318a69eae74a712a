-- About how much an operation has to do from a cursor on, from the heads and counts: reads no message. Null if only a count of the rows could say.
CREATE OR REPLACE FUNCTION queen.left_to_do(p_kind text, p_queue uuid, p_parameters jsonb, p_cursor jsonb)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_after uuid := coalesce((p_cursor ->> 'after')::uuid, '00000000-0000-0000-0000-000000000000');
BEGIN
    CASE p_kind
        WHEN 'clear' THEN
            RETURN (SELECT coalesce(sum(greatest(0, l.last_offset - l.first_offset + 1 - l.holes)), 0)
                    FROM queen.partition_lookup l
                    WHERE l.queue_id = p_queue AND l.partition_id > v_after
                      AND (NOT p_parameters ? 'partition' OR l.partition_id = (
                          SELECT p.id FROM queen.partitions p
                          WHERE p.queue_id = p_queue AND p.name = p_parameters ->> 'partition')));
        WHEN 'seek' THEN
            RETURN (SELECT count(*) FROM queen.partition_consumers c
                    WHERE c.queue_id = p_queue AND c.consumer_group = p_parameters ->> 'group' AND c.partition_id > v_after
                      AND (NOT p_parameters ? 'partition' OR c.partition_id = (
                          SELECT p.id FROM queen.partitions p
                          WHERE p.queue_id = p_queue AND p.name = p_parameters ->> 'partition')));
        WHEN 'redrive' THEN
            RETURN (SELECT coalesce(sum(d.letters), 0) FROM queen.dead_letter_counts d
                    WHERE d.queue_id = p_queue AND d.partition_id > v_after
                      AND (NOT p_parameters ? 'group' OR d.consumer_group = p_parameters ->> 'group')
                      AND (NOT p_parameters ? 'partition' OR d.partition_id IN (
                          SELECT p.id FROM queen.partitions p
                          WHERE p.queue_id = p_queue AND p.name = p_parameters ->> 'partition')));
        ELSE
            RETURN NULL;
    END CASE;
END $$;
