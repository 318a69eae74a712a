SELECT * FROM queen.lock_holder($1, $2)
