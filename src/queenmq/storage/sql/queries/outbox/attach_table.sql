SELECT queen.attach($1::text::regclass, $2, $3, $4, $5)
