SELECT queen.unhide($1, $2)
