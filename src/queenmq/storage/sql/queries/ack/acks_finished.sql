-- Of each (partition, transaction id, group), whether the group has finished the message, and as a dead letter; in order. Without a group,
-- whether any has.
SELECT coalesce(bool_or(m."offset" <= c.position OR c.done @> m."offset"), false) AS finished,
       coalesce(bool_or(d.id IS NOT NULL), false) AS dead, q.name AS queue_name, p.name AS partition_name
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS t (part, tx, grp, i)
LEFT JOIN queen.partitions p ON p.id = t.part
LEFT JOIN queen.queues q ON q.id = p.queue_id
LEFT JOIN queen.messages m ON m.partition_id = t.part AND m.transaction_id = t.tx
LEFT JOIN queen.partition_consumers c ON c.partition_id = t.part AND (t.grp IS NULL OR c.consumer_group = t.grp)
LEFT JOIN queen.dead_letter_queue d
       ON d.partition_id = t.part AND d.consumer_group = c.consumer_group AND d.message_id = m.id
GROUP BY t.i, q.name, p.name
ORDER BY t.i
