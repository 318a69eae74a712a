SELECT * FROM queen.fill_fair_keys($1, $2, $3, $4, $5)
