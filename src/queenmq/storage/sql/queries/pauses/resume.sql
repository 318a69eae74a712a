SELECT queen.resume($1, $2, $3)
