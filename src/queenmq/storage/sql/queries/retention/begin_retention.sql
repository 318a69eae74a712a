-- A run of retention, claimed at once; no row if one is waiting or running already.
INSERT INTO queen.operation_queue (id, kind, parameters, priority, status, worker, claim, claimed_at, attempts)
SELECT queen.uuid7(), 'retention', $1::jsonb, 10,
       s.status, s.worker, s.claim, s.claimed_at, s.attempts
FROM queen.first_claim($2, $3) s
ON CONFLICT (kind) WHERE kind = 'retention' AND status IN ('pending', 'processing') DO NOTHING
RETURNING id
