INSERT INTO queen.pipeline_chunks
    (attempt, place, bucket, rows, queues, partitions, counts, clear, message_ids, payloads, transaction_ids, trace_ids, headers, encrypted)
VALUES ($1::bigint, $2::bigint, $3::smallint, $4::integer, $5::text[], $6::text[], $7::integer[], $8::boolean[], $9::text[], $10::bytea[],
    $11::text[], $12::text[], $13::text[], $14::boolean[])
