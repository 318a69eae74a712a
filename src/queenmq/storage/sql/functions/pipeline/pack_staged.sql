-- Make chunks of single rows: what drivers of the version before have staged, or were moving when this version came (p_promotion, else null).
-- They are under the first attempt, in one bucket, by queue and partition, then in the order of `place`; a chunk has p_most rows and about 4 MiB at most.
-- Locks nothing that servers use.
CREATE OR REPLACE FUNCTION queen.pack_staged(p_attempts bigint[], p_promotion bigint, p_most bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Staged rows have no statistics, so the planner gets settings that suit many rows.
    PERFORM set_config('work_mem', '64MB', true), set_config('enable_nestloop', 'false', true);
    WITH staged AS (
        DELETE FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts) RETURNING *
    ), placed AS (
        SELECT s.*, row_number() OVER (ORDER BY s.queue, s.partition, s.place) AS nth,
               (row_number() OVER (ORDER BY s.queue, s.partition, s.place) - 1) / least(greatest(p_most, 1), 5000)
               + sum(octet_length(s.payload)) OVER (ORDER BY s.queue, s.partition, s.place) / 4194304 AS chunk
        FROM staged s
    ), targets AS (
        SELECT t.chunk, array_agg(t.queue ORDER BY t.first) AS queues, array_agg(t.partition ORDER BY t.first) AS partitions,
               array_agg(t.rows ORDER BY t.first) AS counts, array_agg(t.clear ORDER BY t.first) AS clear
        FROM (
            SELECT p.chunk, p.queue, p.partition, min(p.nth) AS first, count(*)::integer AS rows, bool_or(NOT p.is_encrypted) AS clear
            FROM placed p GROUP BY p.chunk, p.queue, p.partition
        ) t GROUP BY t.chunk
    ), contents AS (
        SELECT p.chunk, min(p.nth) AS first, count(*)::integer AS rows, array_agg(p.message_id ORDER BY p.nth) AS message_ids,
               array_agg(p.transaction_id ORDER BY p.nth) AS transaction_ids, array_agg(p.trace_id ORDER BY p.nth) AS trace_ids,
               array_agg(p.is_encrypted ORDER BY p.nth) AS encrypted, array_agg(p.headers ORDER BY p.nth) AS headers,
               array_agg(p.payload ORDER BY p.nth) AS payloads
        FROM placed p GROUP BY p.chunk
    )
    INSERT INTO queen.pipeline_chunks
        (attempt, place, promotion, bucket, rows, queues, partitions, counts, clear, message_ids, transaction_ids, trace_ids, encrypted, headers, payloads)
    SELECT p_attempts[1], c.first, p_promotion, 0, c.rows, t.queues, t.partitions, t.counts, t.clear,
           c.message_ids, c.transaction_ids, c.trace_ids, c.encrypted, c.headers, c.payloads
    FROM contents c JOIN targets t USING (chunk);
    PERFORM set_config('enable_nestloop', 'true', true);
END $$;
