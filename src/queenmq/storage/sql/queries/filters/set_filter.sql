SELECT * FROM queen.set_filter($1, $2, $3, $4, $5, $6)
