-- How many messages of a queue were deleted by hand, between others that are stored.
SELECT coalesce(sum(holes), 0)::bigint FROM queen.partition_lookup WHERE queue_id = $1::uuid
