-- Where the groups of a queue stand in some partitions, for the picture.
SELECT c.consumer_group, p.name, c.position FROM queen.partition_consumers c
JOIN queen.partitions p ON p.id = c.partition_id WHERE c.queue_id = $1::uuid AND p.name = ANY ($2::text[])
