-- Lower the floor of timers, because there is one that is due at p_moment: see the query hidden_timer.
-- Locks: the advisory one of queen.move_timer_floor, which is held for a moment.
CREATE OR REPLACE FUNCTION queen.lower_timer_floor(p_moment timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('queen.timer_floors', 0));
    INSERT INTO queen.timer_floors (floor, holders)
    SELECT p_moment, '{}' FROM (SELECT f.floor FROM queen.timer_floors f ORDER BY f.id DESC LIMIT 1) f WHERE f.floor > p_moment;
END $$;
