-- Of these messages and groups keep only the last ten attempts. The caller holds the rows of the groups. Locks what it
-- deletes, without waiting: who deletes messages waits for the rows of groups afterwards.
CREATE OR REPLACE FUNCTION queen.forget_attempts(p_partition uuid[], p_offset bigint[], p_group text[])
RETURNS void LANGUAGE sql AS $$
    DELETE FROM queen.attempts WHERE ctid = ANY (ARRAY(
        SELECT a.ctid
        FROM (SELECT DISTINCT part, o, grp COLLATE "C" AS grp FROM unnest(p_partition, p_offset, p_group) AS u (part, o, grp)) t
        JOIN queen.attempts a ON a.partition_id = t.part AND a."offset" = t.o AND a.consumer_group = t.grp
        WHERE a.ended_at < (
            SELECT n.ended_at FROM queen.attempts n
            WHERE n.partition_id = t.part AND n."offset" = t.o AND n.consumer_group = t.grp
            ORDER BY n.ended_at DESC OFFSET 9 LIMIT 1)
        FOR UPDATE OF a SKIP LOCKED))
$$;
