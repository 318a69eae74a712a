-- Give leases back. The generation stays: there is no driver any more.
UPDATE queen.pipeline_leases SET holder = NULL, holder_name = NULL, held_until = NULL
WHERE holder = $1::uuid AND name = ANY ($2::text[])
