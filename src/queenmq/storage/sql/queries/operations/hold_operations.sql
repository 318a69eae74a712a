SELECT queen.hold_operations($1, $2, $3)
