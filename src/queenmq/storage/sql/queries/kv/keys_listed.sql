-- Keys of a namespace ($1) from $2 up to $3 that are behind $4, at most $5; with their values ($6), of up to $7 bytes in all.
SELECT k.key, k.version, k.expires_at, k.updated_at, k.upto > $7 AS omitted, CASE WHEN $6 AND k.upto <= $7 THEN k.value END AS value
FROM (
    SELECT k.*, sum(CASE WHEN $6 THEN octet_length(k.value::text) ELSE 0 END) OVER (ORDER BY k.key ROWS UNBOUNDED PRECEDING) AS upto
    FROM (
        SELECT * FROM queen.kv k
        WHERE k.namespace = $1 AND k.key >= $2 AND k.key <= $3 AND k.key > $4 AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
        ORDER BY k.key LIMIT $5
    ) k
) k
ORDER BY k.key
