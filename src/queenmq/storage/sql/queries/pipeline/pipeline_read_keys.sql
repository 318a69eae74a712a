-- As pipeline_read, without the payloads.
-- The lateral part with its ORDER BY stays a loop over the slice, so the rows come in order without a sort of the whole.
SELECT CASE WHEN m.is_encrypted THEN -t.i ELSE t.i END::integer AS range_index, m."offset", m.created_at, m.transaction_id, m.trace_id, m.id, m.headers
FROM unnest(current_setting('queen.slice_ids')::uuid[], current_setting('queen.slice_from')::bigint[],
            current_setting('queen.slice_upto')::bigint[]) WITH ORDINALITY AS t (id, first, last, i)
CROSS JOIN LATERAL (
    SELECT m."offset", m.created_at, m.transaction_id, m.trace_id::text, m.id::text, m.is_encrypted,
           CASE WHEN m.headers IS NOT NULL AND current_setting('queen.slice_headers') = 'on' THEN m.headers::text END AS headers
    FROM queen.messages m
    WHERE m.partition_id = t.id AND m."offset" >= t.first AND m."offset" <= t.last
    ORDER BY m."offset"
) m
