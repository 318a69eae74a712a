SELECT * FROM queen.claim_operations($1, $2, $3, $4, $5) ORDER BY number
