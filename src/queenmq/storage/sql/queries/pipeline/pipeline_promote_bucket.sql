SELECT queen.promote_bucket($1::text, $2::bigint, $3::integer, $4::bigint)
