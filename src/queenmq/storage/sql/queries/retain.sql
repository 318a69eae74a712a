SELECT * FROM queen.retain($1, $2, $3)
