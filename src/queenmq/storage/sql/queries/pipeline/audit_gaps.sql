-- Offsets that are missing between the first and the last of a partition and not known to be deleted, as ranges. Of messages that were deleted
-- by hand long ago only the number is kept: none, if no more are missing than that.
SELECT g.first_offset, g.last_offset FROM queen.missing_offsets($1::uuid, $2::bigint, $3::bigint) g
WHERE (
    SELECT l.last_offset - l.first_offset + 1
           - greatest(l.holes, queen.count_offsets(queen.deleted_within(l.partition_id, l.first_offset, l.last_offset))) > (
        SELECT count(*) FROM queen.messages m
        WHERE m.partition_id = l.partition_id AND m."offset" BETWEEN l.first_offset AND l.last_offset)
    FROM queen.partition_lookup l WHERE l.partition_id = $1::uuid)
ORDER BY 1 LIMIT 10
