-- Move the next rows of an epoch that queen.promote has decided into the queues, bucket by bucket, p_most at most or one chunk (queen.promote_bucket).
-- Returns false when there are none left; the epoch is finished then. Anybody may do a step at any time: each is done once.
-- Raises QN012 if rows that were decided on are gone, or come before those that were moved: the epoch cannot be finished.
-- Locks: as queen.promote_bucket; the epoch before it, if the version before has decided it and its rows are not in chunks yet.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.promote_step(p_sink text, p_epoch bigint, p_most bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_commit queen.pipeline_commits;
    v_bucket   integer;
BEGIN
    SELECT * INTO v_commit FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch AND c.promotion IS NOT NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF v_commit.buckets IS NULL THEN
        SELECT * INTO v_commit FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch FOR UPDATE;
        IF v_commit.promotion IS NOT NULL AND v_commit.buckets IS NULL THEN
            DELETE FROM queen.pipeline_staged WHERE attempt = v_commit.promotion;
            WITH left_over AS (
                DELETE FROM queen.pipeline_promoting WHERE promotion = v_commit.promotion RETURNING *
            )
            INSERT INTO queen.pipeline_staged
                (attempt, place, queue, partition, message_id, transaction_id, trace_id, is_encrypted, payload, headers)
            SELECT r.promotion, r.place, r.queue, r.partition, r.message_id, r.transaction_id, r.trace_id, r.is_encrypted, r.payload, r.headers
            FROM left_over r WHERE r.place > v_commit.promoted;
            PERFORM queen.pack_staged(ARRAY[v_commit.promotion], v_commit.promotion, p_most);
            UPDATE queen.pipeline_commits c SET buckets = '{}' WHERE c.sink = p_sink AND c.epoch = p_epoch;
        END IF;
    END IF;
    LOOP
        SELECT min(c.bucket) INTO v_bucket FROM queen.pipeline_chunks c WHERE c.promotion = v_commit.promotion;
        EXIT WHEN v_bucket IS NULL;
        IF queen.promote_bucket(p_sink, p_epoch, v_bucket, p_most) THEN
            RETURN true;
        END IF;
        -- What a rival has moved was gone before: nobody else moves this bucket until this transaction ends.
        IF EXISTS (SELECT 1 FROM queen.pipeline_chunks c WHERE c.promotion = v_commit.promotion AND c.bucket = v_bucket) THEN
            RAISE SQLSTATE 'QN012' USING MESSAGE = format(
                'epoch %s of sink %s has rows in bucket %s that come before those that were moved', p_epoch, p_sink, v_bucket);
        END IF;
    END LOOP;
    UPDATE queen.pipeline_commits c SET promotion = NULL
    WHERE c.sink = p_sink AND c.epoch = p_epoch AND c.promoted = c.rows + c.duplicates;
    IF NOT FOUND THEN
        SELECT * INTO v_commit FROM queen.pipeline_commits c WHERE c.sink = p_sink AND c.epoch = p_epoch;
        RAISE SQLSTATE 'QN012' USING MESSAGE = format(
            'of the %s rows of epoch %s of sink %s, %s were moved and the others are gone',
            v_commit.rows + v_commit.duplicates, p_epoch, p_sink, v_commit.promoted);
    END IF;
    RETURN false;
END $$;
