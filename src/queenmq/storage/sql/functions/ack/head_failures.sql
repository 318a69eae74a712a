-- How often the head of a (partition, group) has failed: the first stored message that is not finished. This is the column `attempts`.
-- Reads one message, and none while nothing has failed.
CREATE OR REPLACE FUNCTION queen.head_failures(
    p_partition uuid, p_position bigint, p_done int8multirange, p_failures queen.failures[])
RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_failures IS NULL THEN
        RETURN 0;
    END IF;
    RETURN queen.times_failed(p_failures, (
        SELECT m."offset" FROM queen.messages m
        WHERE m.partition_id = p_partition AND m."offset" > p_position AND NOT p_done @> m."offset"
        ORDER BY m."offset" LIMIT 1));
END $$;
