SELECT * FROM queen.evict($1, $2, $3, $4)
