-- Renew the leases of a supervisor. Returns what it holds, as it is declared now, and since how many seconds its driver has said nothing.
WITH renewed AS (
    UPDATE queen.pipeline_leases SET held_until = clock_timestamp() + make_interval(secs => $2::float8)
    WHERE holder = $1::uuid RETURNING name
)
SELECT p.name, p.version, p.declaration, p.state_number, p.wanted, p.asked, coalesce(extract(epoch FROM clock_timestamp() - s.seen_at), 0)::float8
FROM renewed r JOIN queen.pipelines p ON p.name = r.name JOIN queen.pipeline_states s ON s.name = r.name ORDER BY p.name
