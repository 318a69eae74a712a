SELECT queen.seek($1, $2, $3, $4)
