SELECT * FROM queen.claim_operations($1, $2, $3, $4) ORDER BY number
