SELECT * FROM queen.promote_once($1::text, $2::bigint, $3::bigint[], $4::bigint, $5::text, $6::bigint, $7::boolean, $8::bigint)
