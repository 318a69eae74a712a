-- As take, with the key whose turn it is for each pop ($19).
SELECT p.* FROM (SELECT set_config('lock_timeout', $18, true) AS done) t, LATERAL queen.take(
    CASE WHEN t.done IS NOT NULL THEN $1::uuid[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $19) p
