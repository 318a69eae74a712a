-- What the JSON of a message says of its trace (see queenmq.core.trace_context): its id, and the W3C context in which the message was made,
-- whose span id is the random half of the message's id. A trace of zeros has no context.
CREATE OR REPLACE FUNCTION queen.trace_fields(p_trace uuid, p_message uuid) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT concat(',"traceId":"', p_trace, '"',
                  CASE WHEN p_trace <> '00000000-0000-0000-0000-000000000000' THEN concat(
                      ',"traceparent":"00-', replace(p_trace::text, '-', ''), '-', substr(p_message::text, 20, 4),
                      substr(p_message::text, 25), '-01"') END)
$$;
