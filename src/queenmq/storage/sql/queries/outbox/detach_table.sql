SELECT queen.detach($1::text::regclass, $2)
