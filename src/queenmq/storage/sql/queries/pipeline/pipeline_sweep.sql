SELECT queen.sweep_staged($1::text, $2::bigint)
