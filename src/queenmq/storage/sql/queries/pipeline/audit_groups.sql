-- What is wrong with the positions of groups of a queue; no row is the healthy answer. Everything up to a position is finished by
-- definition, so what can be wrong is where it stands, what is finished or leased beyond it, and whether as much was finished or knowingly
-- passed over as it says: the account of each row (see the migration accounts). Each row is judged by itself, so it may change meanwhile.
SELECT p.name, c.consumer_group, CASE
    WHEN c.position > l.last_offset THEN format('position %s is behind the last offset %s', c.position, l.last_offset)
    WHEN c.lease_offsets && c.done THEN format('offsets %s are leased and finished', c.lease_offsets * c.done)
    WHEN NOT c.done <@ beyond.offsets THEN
        format('finished offsets %s are not between position %s and last offset %s', c.done, c.position, l.last_offset)
    WHEN NOT coalesce(c.lease_offsets, '{}') <@ beyond.offsets THEN
        format('leased offsets %s are not between position %s and last offset %s', c.lease_offsets, c.position, l.last_offset)
    ELSE format('of %s offsets up to position %s and beyond it %s are not accounted for: neither finished, nor dead letters, nor passed over',
                finished.n, c.position, finished.n - c.total_consumed - c.passed_over)
    END
FROM queen.partition_consumers c
JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
JOIN queen.partitions p ON p.id = c.partition_id
CROSS JOIN LATERAL (SELECT int8multirange(int8range(c.position + 1, greatest(l.last_offset, c.position) + 1))) AS beyond (offsets)
CROSS JOIN LATERAL (SELECT c.position + queen.count_offsets(c.done)) AS finished (n)
WHERE c.queue_id = $1::uuid
  AND (c.position > l.last_offset OR c.lease_offsets && c.done OR NOT c.done <@ beyond.offsets
       OR NOT coalesce(c.lease_offsets, '{}') <@ beyond.offsets OR finished.n > c.total_consumed + c.passed_over)
ORDER BY 1, 2
