SELECT queen.hold_generation($1::text, $2::bigint)
