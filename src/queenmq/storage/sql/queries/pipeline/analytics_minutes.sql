SELECT queue_name, consumer_group, minute, arrived, consumed, lag, latency_ms::text, retries, dead_letters, reasons::text,
       hottest::text, skew
FROM queen.pipeline_analytics WHERE queue_name = $1::text AND minute >= $2::timestamptz AND minute < $3::timestamptz
ORDER BY 1, 2, 3
