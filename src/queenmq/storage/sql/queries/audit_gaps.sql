-- Offsets that are missing between the first and the last of a partition, as ranges; none if no more are missing than were deleted by
-- hand, of which only the number is kept.
SELECT g.before + 1, g."offset" - 1 FROM (
    SELECT m."offset", lag(m."offset", 1, $2::bigint - 1) OVER (ORDER BY m."offset") AS before
    FROM (
        SELECT "offset" FROM queen.messages
        WHERE partition_id = $1::uuid AND "offset" >= $2::bigint AND "offset" <= $3::bigint
        UNION ALL SELECT $3::bigint + 1
    ) m
) g
WHERE g."offset" > g.before + 1 AND (
    SELECT l.last_offset - l.first_offset + 1 - l.holes > (
        SELECT count(*) FROM queen.messages m
        WHERE m.partition_id = l.partition_id AND m."offset" BETWEEN l.first_offset AND l.last_offset)
    FROM queen.partition_lookup l WHERE l.partition_id = $1::uuid)
ORDER BY 1 LIMIT 10
