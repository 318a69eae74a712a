SELECT queen.resubscribe($1, $2)
