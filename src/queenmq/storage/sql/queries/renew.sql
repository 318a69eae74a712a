SELECT * FROM queen.renew($1, $2)
