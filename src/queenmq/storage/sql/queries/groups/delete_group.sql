SELECT queen.delete_group($1, $2, $3)
