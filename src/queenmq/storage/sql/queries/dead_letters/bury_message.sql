SELECT queen.bury_message($1, $2, $3)
