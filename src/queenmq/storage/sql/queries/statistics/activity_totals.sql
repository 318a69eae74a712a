-- What all servers did since there is a database.
SELECT coalesce(sum(push_requests), 0)::bigint AS push_requests, coalesce(sum(push_messages), 0)::bigint AS push_messages,
       coalesce(sum(pop_requests), 0)::bigint AS pop_requests, coalesce(sum(pop_messages), 0)::bigint AS pop_messages,
       coalesce(sum(ack_requests), 0)::bigint AS ack_requests, coalesce(sum(ack_success), 0)::bigint AS ack_success,
       coalesce(sum(ack_failed), 0)::bigint AS ack_failed, coalesce(sum(dead_lettered), 0)::bigint AS dead_lettered,
       coalesce(sum(transactions), 0)::bigint AS transactions,
       coalesce(sum(db_errors), 0)::bigint AS db_errors
FROM queen.activity WHERE queue_name = '' AND bucket = '-infinity'
