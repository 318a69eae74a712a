-- Whether a cycle without a message was made from state that is not the present one: a flush, which pushes windows that have ended and
-- deletes their state. Its deletes are all that can fence it, so each has to find the row that its engine has read:
-- * a row that is gone was flushed before (by this cycle, if its answer got lost) or emitted by another one. Only a cycle that does nothing
--   but delete may miss it;
-- * a row that is newer than what was last read has more in it than is pushed, or belongs to a window that was opened again;
-- * while the group holds a lease, a cycle is under way that may have read the same rows, and would emit them again or bring them back.
-- p_kind and p_key are the operations in their order; of several on a key the first one meets the row. Takes no locks: the caller holds the
-- advisory lock of the query and partition, and checks for leases again at its end.
CREATE OR REPLACE FUNCTION queen.is_stale_flush(
    p_query uuid, p_partition uuid, p_group text, p_kind text[], p_key text[], p_pushes boolean)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition AND c.consumer_group = p_group
          AND c.lease_id IS NOT NULL AND c.lease_expires_at > clock_timestamp()
    ) OR EXISTS (
        SELECT 1
        FROM (SELECT DISTINCT ON (t.key) t.kind, t.key FROM unnest(p_kind, p_key) WITH ORDINALITY AS t (kind, key, i)
              ORDER BY t.key, t.i) op
        LEFT JOIN queen.stream_state s ON s.query_id = p_query AND s.partition_id = p_partition AND s.key = op.key
        LEFT JOIN queen.stream_reads r ON r.query_id = p_query AND r.partition_id = p_partition
        WHERE op.kind = 'delete'
          AND (s.updated_at > r.seen OR (s.key IS NULL AND (p_pushes OR 'upsert' = ANY (p_kind))))
    )
$$;
