SELECT queen.retry_message($1, $2, $3)
