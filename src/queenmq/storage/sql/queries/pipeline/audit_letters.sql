-- What is wrong with the dead letters of a queue; no row is the healthy answer. One snapshot, so it may change meanwhile.
-- Their number and the sum of their offsets must be those of the account, which only Queen's own functions write; and a letter whose message
-- is still stored must be its copy; encrypted payloads are not compared, because each is encrypted anew by itself.
WITH letters AS MATERIALIZED (
    SELECT partition_id, consumer_group, min(partition_name) AS name, count(*) AS n, sum("offset") AS offsets
    FROM queen.dead_letter_queue WHERE queue_id = $1::uuid GROUP BY partition_id, consumer_group
), accounts AS MATERIALIZED (
    SELECT partition_id, consumer_group, letters AS n, offsets FROM queen.dead_letter_accounts WHERE queue_id = $1::uuid
)
SELECT coalesce(x.name, p.name, x.partition_id::text), x.consumer_group, x.problem FROM (
    SELECT partition_id, consumer_group, l.name, CASE
        WHEN a.n - coalesce(l.n, 0) = 1 THEN
            format('the dead letter of offset %s is missing', a.offsets - coalesce(l.offsets, 0))
        WHEN a.n > coalesce(l.n, 0) THEN format('%s dead letters are missing', a.n - coalesce(l.n, 0))
        WHEN l.n > coalesce(a.n, 0) THEN format('%s dead letters were not written by Queen', l.n - coalesce(a.n, 0))
        ELSE 'dead letters have other offsets than those that were written' END AS problem
    FROM accounts a FULL JOIN letters l USING (partition_id, consumer_group)
    WHERE coalesce(a.n, 0) <> coalesce(l.n, 0) OR coalesce(a.offsets, 0) <> coalesce(l.offsets, 0)
    UNION ALL
    SELECT d.partition_id, d.consumer_group, d.partition_name,
           format('the dead letter of offset %s is not a copy of its message', d."offset")
    FROM queen.dead_letter_queue d
    JOIN queen.messages m ON m.partition_id = d.partition_id AND m."offset" = d."offset"
    WHERE d.queue_id = $1::uuid
      AND ((m.id, m.transaction_id, m.is_encrypted) IS DISTINCT FROM (d.message_id, d.transaction_id, d.is_encrypted)
           OR (m.payload IS DISTINCT FROM d.payload AND NOT m.is_encrypted))
) x
LEFT JOIN queen.partitions p ON p.id = x.partition_id
ORDER BY 1, 2, 3
