SELECT queen.declare_conflation($1, $2)
