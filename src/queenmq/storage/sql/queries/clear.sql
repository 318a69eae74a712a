SELECT * FROM queen.clear($1, $2, $3, $4)
