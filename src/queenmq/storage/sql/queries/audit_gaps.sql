-- Offsets that are missing between the first and the last of a partition, as ranges.
SELECT g.before + 1, g."offset" - 1 FROM (
    SELECT m."offset", lag(m."offset", 1, $2::bigint - 1) OVER (ORDER BY m."offset") AS before
    FROM (
        SELECT "offset" FROM queen.messages
        WHERE partition_id = $1::uuid AND "offset" >= $2::bigint AND "offset" <= $3::bigint
        UNION ALL SELECT $3::bigint + 1
    ) m
) g
WHERE g."offset" > g.before + 1
ORDER BY 1 LIMIT 10
