-- Offsets of a queue's messages that are known to be deleted, as ranges by partition.
SELECT d.partition_id::text, d.first_offset, d.last_offset FROM queen.deleted_offsets d
JOIN queen.partitions p ON p.id = d.partition_id WHERE p.queue_id = $1::uuid
