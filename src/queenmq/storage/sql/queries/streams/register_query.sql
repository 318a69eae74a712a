SELECT * FROM queen.register_query($1, $2, $3, $4, $5)
