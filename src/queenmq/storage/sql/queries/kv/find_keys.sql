-- The values of these keys ($2) of a namespace ($1) that are there; of up to $3 bytes in all: further ones have none and `omitted`.
SELECT k.key, k.version, k.expires_at, k.updated_at, k.upto > $3 AS omitted, CASE WHEN k.upto <= $3 THEN k.value END AS value
FROM (
    SELECT k.*, sum(octet_length(k.value::text)) OVER (ORDER BY k.key ROWS UNBOUNDED PRECEDING) AS upto
    FROM queen.kv k
    WHERE k.namespace = $1 AND k.key = ANY ($2::text[]) AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
) k
ORDER BY k.key
