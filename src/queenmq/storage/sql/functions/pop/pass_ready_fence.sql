-- A moment before which no row of partition_consumers becomes ready any more without being visible already; null if none is known, and always
-- until the contract step of the upgrade that brought floors. Every row is made
-- ready at clock_timestamp() or later, by a transaction that has locked the table before it read the clock. So if the transactions that
-- had it locked at a moment have all ended, what they wrote is visible, and what the others write is ready after that moment. (The locks of
-- readers and of VACUUM do not count.)
-- 100 ms are taken off, because a clock may be set back a little.
-- Locks: an advisory one, if it is free; who does not get it takes what is known.
CREATE OR REPLACE FUNCTION queen.pass_ready_fence() RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_fence   queen.ready_fences;
    v_at      timestamptz := clock_timestamp();
    v_holders text[];
BEGIN
    SELECT * INTO v_fence FROM queen.ready_fences ORDER BY id DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_fence.pending_at BETWEEN v_at - interval '50 ms' AND v_at
       OR NOT pg_try_advisory_xact_lock(hashtextextended('queen.ready_fences', 0)) THEN
        RETURN CASE WHEN v_fence.pending_at <= v_at THEN v_fence.passed_at - interval '100 ms' END;
    END IF;
    SELECT * INTO v_fence FROM queen.ready_fences ORDER BY id DESC LIMIT 1;
    v_at := clock_timestamp();
    v_holders := ARRAY(
        SELECT DISTINCT l.virtualtransaction FROM pg_locks l
        WHERE l.locktype = 'relation' AND l.relation = 'queen.partition_consumers'::regclass
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND l.granted);
    IF v_fence.pending_at > v_at THEN
        v_fence := NULL;        -- the clock was set back
    -- A transaction has another name once it is prepared, so one that is prepared may be any of them.
    ELSIF v_fence.holders && v_holders OR EXISTS (SELECT 1 FROM unnest(v_holders) AS h (name) WHERE h.name LIKE '-%') THEN
        RETURN v_fence.passed_at - interval '100 ms';
    END IF;
    INSERT INTO queen.ready_fences (passed_at, pending_at, holders) VALUES (v_fence.pending_at, v_at, v_holders);
    DELETE FROM queen.ready_fences WHERE id BETWEEN v_fence.id - 20 AND v_fence.id - 10;
    RETURN v_fence.pending_at - interval '100 ms';
END $$;
