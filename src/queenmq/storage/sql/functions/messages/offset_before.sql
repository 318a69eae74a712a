-- The last offset whose message is older than p_at (or as old, if p_inclusive); 0 if there is none. Creation times
-- never fall within a partition, so this is a binary search over the primary key.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.offset_before(p_partition uuid, p_at timestamptz, p_inclusive boolean DEFAULT false)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_head  queen.partition_lookup;
    v_low   bigint;
    v_high  bigint;
    v_mid   bigint;
    v_found bigint;
    v_time  timestamptz;
BEGIN
    SELECT * INTO v_head FROM queen.partition_lookup WHERE partition_id = p_partition ORDER BY generation DESC LIMIT 1;
    IF v_head.last_offset IS NULL OR v_head.last_offset = 0 THEN
        RETURN 0;
    END IF;
    IF v_head.last_message_at < p_at OR (p_inclusive AND v_head.last_message_at = p_at) THEN
        RETURN v_head.last_offset;
    END IF;
    v_low := v_head.first_offset - 1;
    v_high := v_head.last_offset;
    WHILE v_low < v_high LOOP
        v_mid := (v_low + v_high + 1) / 2;
        SELECT m."offset", m.created_at INTO v_found, v_time FROM queen.messages m
        WHERE m.partition_id = p_partition AND m."offset" <= v_mid AND m."offset" > v_low
        ORDER BY m."offset" DESC LIMIT 1;
        IF v_found IS NULL OR v_time < p_at OR (p_inclusive AND v_time = p_at) THEN
            v_low := v_mid;
        ELSE
            v_high := v_found - 1;
        END IF;
    END LOOP;
    RETURN v_low;
END $$;
