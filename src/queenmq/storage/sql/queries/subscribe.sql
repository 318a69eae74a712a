SELECT queen.subscribe($1, $2, $3, $4, $5)
