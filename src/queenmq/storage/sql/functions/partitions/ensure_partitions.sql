-- Make the queues and partitions that do not exist yet. Arrays run in parallel; repeated pairs are allowed.
-- Locks: unique keys of queues by name, then of partitions by (queue, name), so that two calls over the same
-- names in any order wait for each other and never deadlock.
CREATE OR REPLACE FUNCTION queen.ensure_partitions(p_queues text[], p_partitions text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_held uuid[];
BEGIN
    INSERT INTO queen.queues (name, namespace, task)
    SELECT t.name, split_part(t.name, '.', 1), split_part(t.name, '.', 2)
    FROM (SELECT DISTINCT unnest(p_queues) COLLATE "C" AS name) t
    WHERE NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.name = t.name)
    ORDER BY t.name
    ON CONFLICT (name) DO NOTHING;

    -- A queue that is deleted just now is waited for and skipped: the caller tries again. So is one that was made anew
    -- meanwhile: it is not held, and might be deleted, too.
    SELECT array_agg(q.id) INTO v_held
    FROM (SELECT id FROM queen.queues WHERE name = ANY (p_queues) ORDER BY name FOR KEY SHARE) q;

    INSERT INTO queen.partitions (id, queue_id, name)
    SELECT queen.uuid7(), q.id, t.partition
    FROM (SELECT DISTINCT queue COLLATE "C" AS queue, partition COLLATE "C" AS partition
          FROM unnest(p_queues, p_partitions) AS u (queue, partition)) t
    JOIN queen.queues q ON q.name = t.queue AND q.id = ANY (v_held)
    LEFT JOIN LATERAL (
        SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.partition LIMIT 1
    ) p ON true
    WHERE p.id IS NULL
    ORDER BY q.name, t.partition
    ON CONFLICT (queue_id, name) DO NOTHING;
END $$;
