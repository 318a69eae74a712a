SELECT queen.promote_step($1::text, $2::bigint, $3::bigint)
