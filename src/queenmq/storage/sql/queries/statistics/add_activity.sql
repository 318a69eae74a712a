-- Add what a server ($1) did since it last said so to the present minute: parallel arrays by queue, the empty name for all of them.
-- That one is also kept for good, under the bucket -infinity. Locks: the server's own rows.
INSERT INTO queen.activity AS a (queue_name, bucket, server, push_requests, push_messages, pop_requests, pop_messages, pop_empty,
    ack_requests, ack_success, ack_failed, dead_lettered, transactions, retained, evicted, db_errors, lag_count, lag_sum_ms, lag_max_ms,
    parked)
SELECT t.queue, b.bucket, $1, t.n1, t.n2, t.n3, t.n4, t.n5, t.n6, t.n7, t.n8, t.n9, t.n10, t.n11, t.n12, t.n13, t.n14,
       t.n15, t.n16, t.n17
FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
            $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
            $17::double precision[], $18::double precision[], $19::integer[])
     AS t (queue, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15, n16, n17)
JOIN (VALUES (date_trunc('minute', clock_timestamp()), false), ('-infinity', true)) AS b (bucket, is_total)
  ON t.queue = '' OR NOT b.is_total
ORDER BY t.queue, b.bucket
ON CONFLICT (queue_name, bucket, server) DO UPDATE SET
    push_requests = a.push_requests + excluded.push_requests, push_messages = a.push_messages + excluded.push_messages,
    pop_requests = a.pop_requests + excluded.pop_requests, pop_messages = a.pop_messages + excluded.pop_messages,
    pop_empty = a.pop_empty + excluded.pop_empty, ack_requests = a.ack_requests + excluded.ack_requests,
    ack_success = a.ack_success + excluded.ack_success, ack_failed = a.ack_failed + excluded.ack_failed,
    dead_lettered = a.dead_lettered + excluded.dead_lettered, transactions = a.transactions + excluded.transactions,
    retained = a.retained + excluded.retained, evicted = a.evicted + excluded.evicted, db_errors = a.db_errors + excluded.db_errors,
    lag_count = a.lag_count + excluded.lag_count, lag_sum_ms = a.lag_sum_ms + excluded.lag_sum_ms,
    lag_max_ms = greatest(a.lag_max_ms, excluded.lag_max_ms), parked = excluded.parked
