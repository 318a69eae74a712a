-- Rows of a minute are replaced by what is known better; a field that is null here keeps what was there.
INSERT INTO queen.pipeline_analytics AS a
    (queue_name, consumer_group, minute, arrived, consumed, total_consumed, lag, latency_ms, retries, dead_letters, reasons,
     hottest, skew)
SELECT $1::text, t.consumer_group, t.minute, t.arrived,
       CASE WHEN t.total_consumed IS NOT NULL THEN greatest(t.total_consumed - coalesce((
           SELECT b.total_consumed FROM queen.pipeline_analytics b
           WHERE b.queue_name = $1::text AND b.consumer_group = t.consumer_group AND b.minute < t.minute
             AND b.total_consumed IS NOT NULL ORDER BY b.minute DESC LIMIT 1), t.total_consumed), 0) END,
       t.total_consumed, t.lag, t.latency_ms, t.retries, t.dead_letters, t.reasons, t.hottest, t.skew
FROM jsonb_to_recordset($2::jsonb) AS t (consumer_group text, minute timestamptz, arrived bigint, total_consumed bigint,
    lag bigint, latency_ms jsonb, retries bigint, dead_letters bigint, reasons jsonb, hottest jsonb, skew double precision)
ON CONFLICT (queue_name, consumer_group, minute) DO UPDATE SET
    arrived = coalesce(excluded.arrived, a.arrived), consumed = coalesce(excluded.consumed, a.consumed),
    total_consumed = coalesce(excluded.total_consumed, a.total_consumed), lag = coalesce(excluded.lag, a.lag),
    latency_ms = coalesce(excluded.latency_ms, a.latency_ms), retries = coalesce(excluded.retries, a.retries),
    dead_letters = coalesce(excluded.dead_letters, a.dead_letters), reasons = coalesce(excluded.reasons, a.reasons),
    hottest = coalesce(excluded.hottest, a.hottest), skew = coalesce(excluded.skew, a.skew)
