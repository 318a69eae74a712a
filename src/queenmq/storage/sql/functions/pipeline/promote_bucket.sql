-- Move the next chunks of one bucket of an epoch that queen.promote has decided into the queues: as many as have p_most rows together, at least one.
-- Returns false if none is left in this bucket. Rows keep their order within a partition, all of which is in one bucket; what others push between
-- two steps comes between them. Anybody may do a step at any time: each is done once.
-- Raises lock_not_available as queen.move_chunk does. maxSize and encryption were decided with the epoch.
-- Locks, in this order: an advisory one, of the bucket; as queen.move_chunks; the epoch.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.promote_bucket(p_sink text, p_epoch bigint, p_bucket integer, p_most bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_promotion bigint;
    v_after     bigint;
    v_chunk     record;
    v_rows      bigint := 0;
    v_attempts  bigint[] := '{}';
    v_places    bigint[] := '{}';
    v_moved     record;
BEGIN
    SELECT c.promotion INTO v_promotion FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch;
    IF v_promotion IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('queen.promote_bucket ' || v_promotion, p_bucket));
    -- As it is now that nobody else moves this bucket. Chunks before are gone; their versions need not be visited. Another attempt may have one of
    -- the same place.
    SELECT coalesce(c.buckets[p_bucket + 1], -1) INTO v_after FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch;
    FOR v_chunk IN
        SELECT c.attempt, c.place, c.rows FROM queen.pipeline_chunks c
        WHERE c.promotion = v_promotion AND c.bucket = p_bucket AND c.place >= v_after ORDER BY c.place, c.attempt LIMIT 1000
    LOOP
        EXIT WHEN v_rows > 0 AND v_rows + v_chunk.rows > p_most;
        v_rows := v_rows + v_chunk.rows;
        v_attempts := v_attempts || v_chunk.attempt;
        v_places := v_places || v_chunk.place;
    END LOOP;
    IF v_rows = 0 THEN
        RETURN false;
    END IF;
    v_moved := queen.move_chunks(v_attempts, v_places, false);
    UPDATE queen.pipeline_commits c
    SET promoted = c.promoted + v_rows, committed_at = clock_timestamp(), rows = c.rows - v_moved.duplicates,
        duplicates = c.duplicates + v_moved.duplicates, buckets[p_bucket + 1] = v_places[cardinality(v_places)]
    WHERE c.sink = p_sink AND c.epoch = p_epoch;
    RETURN true;
END $$;
