-- Store a version of a pipeline, the first or the next one. One that was stopped stays so, one that was removed runs again.
WITH stored AS (
    INSERT INTO queen.pipelines AS p (name, kind, version, declaration, reads, writes, state_number, wanted)
    VALUES ($1::text, $2::text, 1, $3::jsonb, $4::text[], $5::text[], 1, 'running')
    ON CONFLICT (name) DO UPDATE SET
        kind = excluded.kind, version = p.version + 1, declaration = excluded.declaration, reads = excluded.reads,
        writes = excluded.writes, state_number = p.state_number + CASE WHEN $6::boolean THEN 1 ELSE 0 END,
        wanted = CASE p.wanted WHEN 'removed' THEN 'running' ELSE p.wanted END, asked = p.asked + 1, changed_at = clock_timestamp()
    RETURNING name, version, declaration, state_number
), kept AS (
    INSERT INTO queen.pipeline_versions (name, version, declaration, state_number)
    SELECT name, version, declaration, state_number FROM stored
), lease AS (
    INSERT INTO queen.pipeline_leases (name) SELECT name FROM stored ON CONFLICT DO NOTHING
), state AS (
    INSERT INTO queen.pipeline_states AS s (name) SELECT name FROM stored
    ON CONFLICT (name) DO UPDATE SET positions = CASE WHEN $6::boolean THEN '{}' ELSE s.positions END,
        covered_until = CASE WHEN $6::boolean THEN NULL ELSE s.covered_until END
)
SELECT version, state_number FROM stored
