SELECT * FROM queen.ack($1, $2, $3, $4, $5, $6)
