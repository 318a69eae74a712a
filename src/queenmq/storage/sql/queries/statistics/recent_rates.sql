-- Messages pushed and acknowledged a second, over the last whole minute and what there is of the present one.
SELECT coalesce(sum(push_messages) / max(span.seconds), 0)::double precision AS pushed,
       coalesce(sum(pop_messages) / max(span.seconds), 0)::double precision AS popped,
       coalesce(sum(ack_success) / max(span.seconds), 0)::double precision AS acked
FROM queen.activity a,
     (SELECT 60 + extract(epoch FROM now() - date_trunc('minute', now())) AS seconds) span
WHERE a.queue_name = '' AND a.bucket >= date_trunc('minute', now()) - interval '1 minute'
