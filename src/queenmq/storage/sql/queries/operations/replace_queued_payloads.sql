-- Replace the payloads of a push ($1) in the operation queue by $2, which decrypt to the same. One that runs by now keeps what its server has.
-- Locks: the operation.
UPDATE queen.operation_queue o SET payloads = $2::bytea[]
WHERE o.id = $1 AND o.kind = 'push' AND o.status IN ('pending', 'failed') AND cardinality(o.payloads) = cardinality($2::bytea[])
RETURNING 1 AS replaced
