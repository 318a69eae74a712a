SELECT queen.set_conflation($1, $2, $3, $4)
