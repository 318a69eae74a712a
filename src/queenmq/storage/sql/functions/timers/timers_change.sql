-- What was to be pushed in the past is to be pushed now: no timer may be due before the moment at which its transaction locked the table, or a
-- floor (see queen.move_timer_floor) could hide it. That lock is taken before any trigger runs, so the time that is read here is later. Who has
-- read the time before, but after the lock, says so in the parameter queen.timers_locked_at (see queen.change_timers): seconds since 1970.
CREATE OR REPLACE FUNCTION queen.on_timers_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF NEW.next_attempt_at < v_now THEN
        NEW.next_attempt_at := greatest(
            NEW.next_attempt_at, coalesce(to_timestamp(nullif(current_setting('queen.timers_locked_at', true), '')::float8), v_now));
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER timers_change BEFORE INSERT OR UPDATE OF next_attempt_at ON queen.timers
    FOR EACH ROW EXECUTE FUNCTION queen.on_timers_change();
