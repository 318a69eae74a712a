SELECT * FROM queen.pause($1, $2, $3, $4, $5)
