-- Note who has popped, one element a consumer: queue, group, tag, and what is known of them. Who was seen not long ago is left as it is.
-- $9 is the lock_timeout: somebody may hold the row of a queue for long. It is an argument's condition so that it is set before.
INSERT INTO queen.consumers AS c (queue_id, consumer_group, tag, name, host, process, address, subject, since, seen_at)
SELECT q.id, t.grp, t.tag, t.name, t.host, t.process, t.address, t.subject, now(), now()
FROM (SELECT set_config('lock_timeout', $9, true) AS done) s
CROSS JOIN LATERAL unnest(CASE WHEN s.done IS NOT NULL THEN $1::text[] END, $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
     AS t (queue, grp, tag, name, host, process, address, subject)
JOIN queen.queues q ON q.name = t.queue
ORDER BY q.id, t.grp COLLATE "C", t.tag
ON CONFLICT (queue_id, consumer_group, tag) DO UPDATE SET seen_at = EXCLUDED.seen_at, address = EXCLUDED.address
WHERE c.seen_at < EXCLUDED.seen_at - interval '15 seconds'
