-- Up to which offset every group of a queue has finished the messages of a partition; 0 if no group reads it, or one has read nothing.
-- p_begun are groups that have popped only partitions by name. Where they have no place yet they have read nothing: their next pop of any
-- partition gets what is there. They are examined one after the other until one has read nothing. Locks nothing.
CREATE OR REPLACE FUNCTION queen.read_by_all(p_queue text, p_partition uuid, p_begun text[]) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_upto  bigint := coalesce((SELECT min(c.position) FROM queen.partition_consumers c WHERE c.partition_id = p_partition), 0);
    v_name  text := (SELECT p.name FROM queen.partitions p WHERE p.id = p_partition);
    v_group text;
    v_since timestamptz;
BEGIN
    FOREACH v_group IN ARRAY p_begun LOOP
        EXIT WHEN v_upto = 0;
        PERFORM 1 FROM queen.partition_consumers c WHERE c.partition_id = p_partition AND c.consumer_group = v_group;
        IF NOT FOUND THEN
            v_since := queen.start_of(p_queue, v_name, v_group, false, clock_timestamp());
            v_upto := CASE WHEN v_since IS NULL THEN 0 ELSE least(v_upto, queen.offset_before(p_partition, v_since)) END;
        END IF;
    END LOOP;
    RETURN v_upto;
END $$;
