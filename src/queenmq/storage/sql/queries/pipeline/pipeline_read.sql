-- The messages of the slice that was set, partition after partition, each in the order of its offsets.
-- `range_index` is the number of the range in the slice, negative for an encrypted payload: one column less to move.
-- The lateral part with its ORDER BY stays a loop over the slice, so the rows come in order without a sort of the whole.
SELECT CASE WHEN m.is_encrypted THEN -t.i ELSE t.i END::integer AS range_index, m."offset", m.created_at, m.transaction_id, m.trace_id, m.id, m.payload, m.headers
FROM unnest(current_setting('queen.slice_ids')::uuid[], current_setting('queen.slice_from')::bigint[],
            current_setting('queen.slice_upto')::bigint[]) WITH ORDINALITY AS t (id, first, last, i)
CROSS JOIN LATERAL (
    SELECT m."offset", m.created_at, m.transaction_id, m.trace_id::text, m.id::text, m.is_encrypted, m.payload,
           CASE WHEN m.headers IS NOT NULL AND current_setting('queen.slice_headers') = 'on' THEN m.headers::text END AS headers
    FROM queen.messages m
    WHERE m.partition_id = t.id AND m."offset" >= t.first AND m."offset" <= t.last
    ORDER BY m."offset"
) m
