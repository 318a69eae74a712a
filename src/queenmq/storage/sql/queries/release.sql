SELECT queen.release($1)
