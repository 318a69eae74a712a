-- The messages of some ranges of offsets ($1 partitions, $2 first, $3 last), one row for each range with every column
-- glued together: neither PostgreSQL nor the reader spends time on the single message. Texts and payloads come with
-- their lengths, numbers are big-endian. $4: with payloads, $5: with ids, $7: with headers, whose length is 0 for none. `special` counts messages that do not fit
-- this form, because they are encrypted or have more than $6 bytes: pipeline_read reads them.
-- The order is the index's, so the aggregates see the messages in it without a sort.
SELECT t.i AS range_index, g.*
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS t (id, first, last, i)
CROSS JOIN LATERAL (
    SELECT count(*) AS messages,
           count(*) FILTER (WHERE m.is_encrypted OR $4::boolean AND octet_length(m.payload) > $6::integer) AS special,
           string_agg(timestamptz_send(m.created_at), ''::bytea) AS created_at,
           convert_to(string_agg(m.transaction_id, ''), 'UTF8') AS transaction_ids,
           string_agg(int4send(octet_length(m.transaction_id)), ''::bytea) AS transaction_lengths,
           string_agg(uuid_send(m.trace_id), ''::bytea) AS trace_ids,
           string_agg(uuid_send(m.id), ''::bytea) FILTER (WHERE $5::boolean) AS ids,
           string_agg(m.payload, ''::bytea) FILTER (WHERE $4::boolean AND octet_length(m.payload) <= $6::integer) AS payloads,
           string_agg(int4send(octet_length(m.payload)), ''::bytea) FILTER (WHERE $4::boolean) AS payload_lengths,
           convert_to(string_agg(m.header_text, ''), 'UTF8') AS headers,
           string_agg(int4send(coalesce(octet_length(m.header_text), 0)), ''::bytea) FILTER (WHERE $7::boolean) AS header_lengths
    FROM (
        SELECT m.*, CASE WHEN $7::boolean THEN m.headers::text END AS header_text
        FROM queen.messages m
        WHERE m.partition_id = t.id AND m."offset" >= t.first AND m."offset" <= t.last
        ORDER BY m."offset"
    ) m
) g
