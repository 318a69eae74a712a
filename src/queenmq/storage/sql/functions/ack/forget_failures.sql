-- After positions of these groups in a partition have changed: forget the failures of what they have finished, and of the messages at
-- p_offsets, and say again in `attempts` how often the head has failed. With p_gone, these messages are stored no more, so that nothing is kept
-- back of them. Touches only rows in which something has failed or is skipped.
-- The caller holds the rows.
CREATE OR REPLACE FUNCTION queen.forget_failures(p_partition uuid, p_groups text[], p_offsets int8multirange, p_gone boolean DEFAULT false)
RETURNS void LANGUAGE sql AS $$
    UPDATE queen.partition_consumers c
    SET failures = n.failures, attempts = queen.head_failures(p_partition, c.position, c.done, n.failures),
        skipped = CASE WHEN c.skipped IS NOT NULL
                       THEN queen.still_skipped(c.skipped, c.position, c.done + CASE WHEN p_gone THEN p_offsets ELSE '{}' END) END
    FROM (
        SELECT c.consumer_group, queen.count_failures(c.failures, '{}', c.position, c.done + p_offsets) AS failures
        FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition AND c.consumer_group = ANY (p_groups) AND (c.failures IS NOT NULL OR c.skipped IS NOT NULL)
    ) n
    WHERE c.partition_id = p_partition AND c.consumer_group = n.consumer_group
$$;
