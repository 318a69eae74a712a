-- Move the floor of timers (queen.timer_floors) as far up as is safe, and return it; null if somebody else does it. It never hides a timer,
-- whenever its transaction commits: the trigger timers_change lets no next_attempt_at lie before a moment at which its transaction had
-- the table locked for writing. So once the transactions that had it locked at a moment have all ended, what they wrote is visible, and
-- what the others write is due after that moment. (The locks of readers and of VACUUM do not count.) The floor is raised to that moment,
-- but not above the oldest timer that is there, and one call later: the moment and who had the table locked then are kept until the next.
-- 100 ms are taken off, because a clock may be set back a little. If it was set back further, there is no floor until the next moves.
-- Locks: an advisory one, if it is free.
CREATE OR REPLACE FUNCTION queen.move_timer_floor() RETURNS timestamptz LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_last    queen.timer_floors;
    v_at      timestamptz;
    v_holders text[];
    v_floor   timestamptz := '-infinity';
    v_oldest  timestamptz;
BEGIN
    -- With an older snapshot, rows that were committed meanwhile would be overlooked.
    IF current_setting('transaction_isolation') <> 'read committed'
       OR NOT pg_try_advisory_xact_lock(hashtextextended('queen.timer_floors', 0)) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO v_last FROM queen.timer_floors f ORDER BY f.id DESC LIMIT 1;
    v_at := clock_timestamp();
    v_holders := ARRAY(
        SELECT DISTINCT l.virtualtransaction FROM pg_locks l
        WHERE l.locktype = 'relation' AND l.relation = 'queen.timers'::regclass
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND l.granted);
    IF v_last.id IS NOT NULL AND greatest(v_last.floor, v_last.pending_at) <= v_at THEN
        -- A transaction has another name once it is prepared, so one that is prepared may be any of them.
        IF v_last.holders && v_holders OR EXISTS (SELECT 1 FROM unnest(v_holders) AS h (name) WHERE h.name LIKE '-%') THEN
            RETURN v_last.floor;
        END IF;
        v_floor := v_last.floor;
        -- Later than who holds the table, so that it sees everything that was committed before.
        SELECT t.next_attempt_at INTO v_oldest FROM queen.timers t
        WHERE t.next_attempt_at >= v_floor ORDER BY t.next_attempt_at LIMIT 1;
        IF v_last.pending_at IS NOT NULL THEN
            v_floor := greatest(v_floor, least(v_last.pending_at - interval '100 ms', v_oldest));
        END IF;
    END IF;
    INSERT INTO queen.timer_floors (floor, pending_at, holders) VALUES (v_floor, v_at, v_holders);
    DELETE FROM queen.timer_floors WHERE id BETWEEN v_last.id - 20 AND v_last.id - 10;
    RETURN v_floor;
END $$;
