-- Move what tasks have staged into the queues: the commit of one epoch of a sink, all of it or nothing. An epoch of more than p_most rows (null: of any
-- number) is only decided here: queen.promote_bucket and queen.promote_step move it. One into a queue with maxSize is moved at once.
-- p_attempts are the attempts that count, p_rows how many rows they staged together. The rows of a partition get their offsets
-- in the order of `place`; a row without a transaction id has its message id for one. A transaction id that is there already, or
-- a second time among the rows, is left out.
-- An epoch that was committed before changes nothing: fresh is false.
-- Raises QN003 if staged rows are missing (PostgreSQL crashed meanwhile, or they were swept or withdrawn), QN002 as queen.push does, QN004 with the queues' names if
-- maxSize does not leave room for all that would be written, lock_not_available if a partition has queued operations: a message that was accepted
-- before is not overtaken, and the same call may succeed when they are done.
-- Locks, in this order: the key of the epoch, then as queen.move_chunks.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.promote(
    p_sink text, p_epoch bigint, p_attempts bigint[], p_rows bigint, p_most bigint DEFAULT NULL,
    OUT fresh boolean, OUT written bigint, OUT duplicates bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_staged  bigint;
    v_decided bigint;
    v_queues  text[];
    v_small   boolean;  -- a queue is, by its maxSize
    v_secret  text[];
BEGIN
    INSERT INTO queen.pipeline_commits (sink, epoch) VALUES (p_sink, p_epoch) ON CONFLICT DO NOTHING;
    fresh := FOUND;
    IF NOT fresh THEN
        SELECT c.rows, c.duplicates INTO written, duplicates FROM queen.pipeline_commits c
        WHERE c.sink = p_sink AND c.epoch = p_epoch;
        RETURN;
    END IF;

    SELECT coalesce(sum(c.rows), 0) INTO v_staged FROM queen.pipeline_chunks c WHERE c.attempt = ANY (p_attempts);
    IF v_staged <> p_rows THEN
        -- Drivers of the version before stage rows, not chunks.
        PERFORM queen.pack_staged(p_attempts, NULL, coalesce(p_most, p_rows));
        SELECT coalesce(sum(c.rows), 0) INTO v_staged FROM queen.pipeline_chunks c WHERE c.attempt = ANY (p_attempts);
        IF v_staged <> p_rows THEN
            RAISE SQLSTATE 'QN003' USING MESSAGE = format('%s rows were staged and %s are there', p_rows, v_staged);
        END IF;
    END IF;
    written := 0;
    duplicates := 0;
    IF v_staged = 0 THEN
        RETURN;
    END IF;

    v_queues := ARRAY(
        SELECT DISTINCT q.name FROM queen.pipeline_chunks c CROSS JOIN LATERAL unnest(c.queues) AS q (name) WHERE c.attempt = ANY (p_attempts));
    SELECT coalesce(bool_or(q.max_size > 0), false), array_agg(q.name) FILTER (WHERE q.encryption_enabled)
    INTO v_small, v_secret
    FROM queen.queues q WHERE q.name = ANY (v_queues);
    IF v_secret IS NOT NULL AND EXISTS (
        SELECT 1 FROM queen.pipeline_chunks c CROSS JOIN LATERAL unnest(c.queues, c.clear) AS t (queue, clear)
        WHERE c.attempt = ANY (p_attempts) AND t.clear AND t.queue = ANY (v_secret)
    ) THEN
        RAISE SQLSTATE 'QN002' USING MESSAGE = 'a queue demands encrypted payloads', DETAIL = array_to_json(v_secret)::text;
    END IF;

    IF v_staged > p_most AND NOT v_small THEN
        WITH decided AS (
            UPDATE queen.pipeline_chunks c SET promotion = p_attempts[1] WHERE c.attempt = ANY (p_attempts) RETURNING c.rows
        )
        SELECT sum(d.rows) INTO v_decided FROM decided d;
        IF v_decided IS DISTINCT FROM v_staged THEN
            RAISE SQLSTATE 'QN003' USING MESSAGE = format('%s rows were staged and %s are there', p_rows, coalesce(v_decided, 0));
        END IF;
        UPDATE queen.pipeline_commits c SET rows = v_staged, promotion = p_attempts[1], buckets = '{}'
        WHERE c.sink = p_sink AND c.epoch = p_epoch;
        written := v_staged;
        RETURN;
    END IF;
    SELECT m.written, m.duplicates INTO written, duplicates
    FROM (
        SELECT array_agg(c.attempt ORDER BY c.place) AS attempts, array_agg(c.place ORDER BY c.place) AS places
        FROM queen.pipeline_chunks c WHERE c.attempt = ANY (p_attempts)
    ) k, LATERAL queen.move_chunks(k.attempts, k.places, v_small) m;
    UPDATE queen.pipeline_commits c SET rows = promote.written, duplicates = promote.duplicates
    WHERE c.sink = p_sink AND c.epoch = p_epoch;
END $$;
