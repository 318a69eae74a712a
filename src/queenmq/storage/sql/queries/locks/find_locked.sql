SELECT * FROM queen.find_locked($1, $2, $3, $4, $5, $6, $7)
