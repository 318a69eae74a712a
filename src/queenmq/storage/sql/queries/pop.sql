SELECT * FROM queen.pop($1, $2, $3, $4, $5, $6, $7)
