-- How many messages of a partition are stored after p_after and up to p_upto, without those in p_done. Exact; only where messages were
-- deleted by hand are they counted one by one, and over a longer range than 100,000 the answer may be too high by so many as were deleted.
CREATE OR REPLACE FUNCTION queen.count_stored(
    p_head queen.partition_lookup, p_after bigint, p_upto bigint, p_done int8multirange)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_after bigint := greatest(p_after, p_head.first_offset - 1);
    v_count bigint;
BEGIN
    IF p_upto <= v_after THEN
        RETURN 0;
    END IF;
    IF p_head.holes > 0 AND p_upto - v_after <= 100000 THEN
        SELECT count(*) INTO v_count FROM queen.messages m
        WHERE m.partition_id = p_head.partition_id AND m."offset" > v_after AND m."offset" <= p_upto AND NOT p_done @> m."offset";
        RETURN v_count;
    END IF;
    v_count := p_upto - v_after;
    IF NOT isempty(p_done) THEN
        v_count := v_count - queen.count_offsets(p_done * int8multirange(int8range(v_after, p_upto, '(]')));
    END IF;
    RETURN least(v_count, p_head.last_offset - p_head.first_offset + 1 - p_head.holes);
END $$;
