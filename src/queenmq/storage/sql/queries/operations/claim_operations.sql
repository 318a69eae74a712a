SELECT * FROM queen.claim_operations($1, $2, $3, $4, $5, $6) ORDER BY number
