-- Delete dead letters, and take them off their accounts. Returns the groups that had given something up, null if there were none.
-- Locks: the letters; then their accounts.
CREATE OR REPLACE FUNCTION queen.forget_letters(p_ids uuid[]) RETURNS text[] LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM queen.dead_letter_queue WHERE id = ANY (p_ids) RETURNING partition_id, consumer_group, "offset"
    ), settled AS (
        UPDATE queen.dead_letter_accounts a SET letters = a.letters - t.letters, offsets = a.offsets - t.offsets
        FROM (
            SELECT partition_id, consumer_group, count(*) AS letters, sum("offset") AS offsets FROM taken
            GROUP BY partition_id, consumer_group
        ) t
        WHERE a.partition_id = t.partition_id AND a.consumer_group = t.consumer_group
    )
    SELECT array_agg(DISTINCT consumer_group) FROM taken
$$;
