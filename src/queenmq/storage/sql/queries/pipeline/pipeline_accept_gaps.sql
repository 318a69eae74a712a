SELECT * FROM queen.accept_gaps($1::text, $2::text)
