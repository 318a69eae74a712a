-- Whether the message of a dead letter can be delivered again: it is stored still, or its transaction id is free in the partition of its
-- name and no later message of that id became a dead letter, too. Else another message has taken its place, and the letter is all
-- there is of it. Takes no locks; true for as long as the heads of both partitions are held.
CREATE OR REPLACE FUNCTION queen.can_return(
    p_queue uuid, p_partition uuid, p_name text, p_transaction text, p_offset bigint)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT m."offset" = p_offset FROM queen.messages m
         WHERE m.partition_id = p_partition AND m.transaction_id = p_transaction LIMIT 1),
        p_offset >= (SELECT max(d."offset") FROM queen.dead_letter_queue d
                     WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction)
        AND (SELECT m.id FROM queen.messages m
             WHERE m.partition_id = (SELECT p.id FROM queen.partitions p WHERE p.queue_id = p_queue AND p.name = p_name)
               AND m.transaction_id = p_transaction LIMIT 1) IS NULL)
$$;
