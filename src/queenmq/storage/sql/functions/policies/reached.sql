-- How far towards p_goal a position may move in a partition of which messages are skipped: up to the first stored message that is not
-- finished. Elsewhere everything before the end of a lease is finished with it; around what is skipped it is not.
CREATE OR REPLACE FUNCTION queen.reached(p_partition uuid, p_position bigint, p_done int8multirange, p_goal bigint)
RETURNS bigint LANGUAGE plpgsql STABLE COST 1 AS $$
BEGIN
    RETURN coalesce((
        SELECT m."offset" - 1 FROM queen.messages m
        WHERE m.partition_id = p_partition AND m."offset" > p_position AND m."offset" <= p_goal AND NOT p_done @> m."offset"
        ORDER BY m."offset" LIMIT 1), p_goal);
END $$;
