-- How far a message has come with the groups of its partition.
CREATE OR REPLACE FUNCTION queen.message_state(
    p_partition uuid, p_offset bigint, p_transaction text,
    OUT status text, OUT queue_status text, OUT consumed_by integer, OUT named_groups integer, OUT queue_mode boolean,
    OUT lease_expires_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT CASE
               WHEN EXISTS (SELECT 1 FROM queen.dead_letter_queue d
                            WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction
                              AND d."offset" = p_offset) THEN 'dead_letter'
               WHEN bool_or(x.leased) THEN 'processing'
               WHEN bool_and(x.finished) THEN 'completed'
               ELSE 'pending' END,
           coalesce(max(CASE WHEN x.leased THEN 'processing' WHEN x.finished THEN 'completed' ELSE 'pending' END)
                        FILTER (WHERE x.is_queue_mode), 'pending'),
           (count(*) FILTER (WHERE x.finished AND NOT x.is_queue_mode))::integer,
           (count(*) FILTER (WHERE NOT x.is_queue_mode))::integer,
           coalesce(bool_or(x.is_queue_mode), false),
           max(x.lease_expires_at) FILTER (WHERE x.leased)
    FROM (
        SELECT c.consumer_group = '__QUEUE_MODE__' AS is_queue_mode, c.lease_expires_at,
               p_offset <= c.position OR c.done @> p_offset AS finished,
               coalesce(c.lease_expires_at > clock_timestamp() AND c.lease_offsets @> p_offset, false) AS leased
        FROM queen.partition_consumers c WHERE c.partition_id = p_partition
    ) x
$$;
