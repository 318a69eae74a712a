SELECT * FROM queen.promote($1::text, $2::bigint, $3::bigint[], $4::bigint)
