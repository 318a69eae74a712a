-- Forget the floor of a group (queen.ready_floors), because rows are made ready at a time in the past, which may lie below it. Call it before
-- they are written: until the end of the transaction nobody else can make a new floor, which would hide what is not committed yet.
-- Locks: the advisory one of queen.move_ready_floor, which pops hold for a moment.
CREATE OR REPLACE FUNCTION queen.reset_ready_floor(p_queue uuid, p_group text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('queen.ready_floors ' || p_group, hashtext(p_queue::text)));
    DELETE FROM queen.ready_floors WHERE queue_id = p_queue AND consumer_group = p_group;
END $$;
