SELECT queen.delete_queue($1)
