-- What is wrong with the positions of groups of a queue; no row is the healthy answer. Everything up to a position is finished by
-- definition, so what can be wrong is where it stands, and what is finished or leased beyond it.
SELECT p.name, c.consumer_group, CASE
    WHEN c.position > l.last_offset THEN format('position %s is behind the last offset %s', c.position, l.last_offset)
    WHEN c.lease_offsets && c.done THEN format('offsets %s are leased and finished', c.lease_offsets * c.done)
    ELSE format('finished offsets %s are not between position %s and last offset %s', c.done, c.position, l.last_offset)
    END
FROM queen.partition_consumers c
JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
JOIN queen.partitions p ON p.id = c.partition_id
WHERE c.queue_id = $1::uuid
  AND (c.position > l.last_offset OR c.lease_offsets && c.done
       OR NOT c.done <@ int8multirange(int8range(c.position + 1, greatest(l.last_offset, c.position) + 1)))
ORDER BY 1, 2
