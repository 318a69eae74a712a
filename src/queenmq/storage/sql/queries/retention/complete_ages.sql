SELECT queen.complete_ages($1, $2)
