-- pipeline_promote of a driver that is supervised: only by the newest generation of its pipeline.
SELECT p.* FROM queen.hold_generation($9::text, $10::bigint) h,
    queen.promote_once($1::text, $2::bigint, $3::bigint[], $4::bigint, $5::text, $6::bigint, $7::boolean, $8::bigint) p
