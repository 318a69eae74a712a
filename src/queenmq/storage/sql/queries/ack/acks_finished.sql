-- Of each (partition, transaction id, group, lease), what became of the message, in order. finished: the group has finished it; dead: as a dead
-- letter. said: what was said of it last under this lease, if that was a failure. held: the lease has not ended by an ack, and nobody has taken its
-- place. expired: it ended without a word, and another one has taken its place. Without a group, whether any has; a lease may be null.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) WITH ORDINALITY AS t (part, tx, grp, lease, i)
), expired AS MATERIALIZED (
    SELECT DISTINCT t.part, t.lease FROM (SELECT DISTINCT part, lease FROM asked) t
    JOIN queen.attempts a ON a.partition_id = t.part AND a.lease_id = t.lease AND a.outcome = 'expired'
)
SELECT coalesce(bool_or(m."offset" <= c.position OR c.done @> m."offset"), false) AS finished,
       coalesce(bool_or(d.id IS NOT NULL), false) AS dead,
       max(s.outcome) AS said,
       coalesce(bool_or(c.lease_id = t.lease), false) AS held,
       bool_or(e.lease IS NOT NULL) AS expired,
       q.name AS queue_name, p.name AS partition_name
FROM asked t
LEFT JOIN queen.partitions p ON p.id = t.part
LEFT JOIN queen.queues q ON q.id = p.queue_id
LEFT JOIN queen.messages m ON m.partition_id = t.part AND m.transaction_id = t.tx
LEFT JOIN queen.partition_consumers c ON c.partition_id = t.part AND (t.grp IS NULL OR c.consumer_group = t.grp)
LEFT JOIN queen.dead_letter_queue d
       ON d.partition_id = t.part AND d.consumer_group = c.consumer_group AND d.message_id = m.id
LEFT JOIN LATERAL (
    SELECT a.outcome FROM queen.attempts a
    WHERE a.partition_id = t.part AND a."offset" = m."offset" AND a.consumer_group = c.consumer_group
      AND a.lease_id = t.lease AND a.outcome <> 'expired'
    ORDER BY a.ended_at DESC LIMIT 1
) s ON true
LEFT JOIN expired e ON e.part = t.part AND e.lease = t.lease
GROUP BY t.i, q.name, p.name
ORDER BY t.i
