-- Take the leases of pipelines that shall run and that no supervisor holds. Drivers of their generations can publish nothing from here on. One whose
-- driver publishes at this moment is left for the next time.
WITH free AS (
    SELECT l.name FROM queen.pipeline_leases l JOIN queen.pipelines p ON p.name = l.name
    WHERE p.wanted = 'running' AND (l.holder IS NULL OR l.held_until < clock_timestamp())
      AND ($4::text[] IS NULL OR l.name = ANY ($4::text[]))
    ORDER BY l.name FOR UPDATE OF l SKIP LOCKED
)
UPDATE queen.pipeline_leases l
SET holder = $1::uuid, holder_name = $2::text, held_until = clock_timestamp() + make_interval(secs => $3::float8), generation = l.generation + 1
FROM free WHERE l.name = free.name RETURNING l.name
