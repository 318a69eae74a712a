SELECT queen.delete_message($1, $2)
