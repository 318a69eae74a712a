-- Allocate the offset of a row that comes without one (a psql session's INSERT), and notify the servers at the commit.
-- queen.push brings its own, and its server knows. `SET queen.announce = off` keeps a session quiet, which
-- two-phase commits need: PostgreSQL prepares no transaction with a NOTIFY.
-- The head in partition_lookup moves once a statement (messages_insert), not once a row: the versions of one row pile up in
-- a transaction, and each read of it would walk over all of them. So the newest offset is that of the head or of a row that
-- this statement has inserted since. queen.allocated, which lasts as long as the transaction or savepoint, only says where to
-- find that row; what is there decides. A row that ON CONFLICT DO NOTHING refuses is not there, and uses up no offset.
-- Locks, to the end of the transaction: the partition's row in partition_lookup; an advisory one, if it is free.
CREATE OR REPLACE FUNCTION queen.on_messages_allocate() RETURNS trigger LANGUAGE plpgsql
-- A plan that is made while the table is small would read the whole of it for every row that makes it large.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_queue     uuid;
    v_head      bigint;
    v_newest    bigint;
    v_found     bigint;
    v_allocated text[] := string_to_array(current_setting('queen.allocated', true), ' ');
BEGIN
    PERFORM convert_from(NEW.payload, 'UTF8')::json;    -- it goes out as it is, so it must be JSON
    -- Later ones of the partition are never earlier, so one that comes from the end of time would take them all there.
    IF NEW.created_at NOT BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00' THEN
        RAISE datetime_field_overflow USING MESSAGE = 'created_at must be within the years 1 to 9999';
    END IF;
    SELECT queue_id, last_offset, greatest(NEW.created_at, last_message_at)
    INTO v_queue, v_head, NEW.created_at
    FROM queen.partition_lookup WHERE partition_id = NEW.partition_id ORDER BY generation DESC LIMIT 1 FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('partition %s does not exist', NEW.partition_id);
    END IF;

    v_newest := v_head;
    IF v_allocated[1] = NEW.partition_id::text THEN
        v_newest := greatest(v_head, v_allocated[2]::bigint);
    -- Transactions with a NOTIFY commit one after the other, each with a flush of its own. So that those of many sessions are
    -- not held up, four at most have one at a time; long polls find the messages of the others at their next probe.
    ELSIF current_setting('queen.announce', true) IS DISTINCT FROM 'off'
          AND pg_try_advisory_xact_lock(hashtextextended('queen_written', hashtext(v_queue::text) & 3)) THEN
        PERFORM pg_notify('queen_written', name) FROM queen.queues WHERE id = v_queue;
    END IF;
    -- Statements of their own, because they must see what was committed while the lock was waited for.
    SELECT max("offset") INTO v_found FROM queen.messages
    WHERE partition_id = NEW.partition_id AND "offset" BETWEEN v_newest AND v_newest + 2;
    IF v_found <= v_newest + 1 THEN
        v_newest := v_found;
    ELSIF v_found IS NOT NULL OR v_newest > v_head THEN
        SELECT coalesce(max("offset"), v_head) INTO v_newest FROM queen.messages
        WHERE partition_id = NEW.partition_id AND "offset" > v_head;
    END IF;
    NEW."offset" := v_newest + 1;
    PERFORM set_config('queen.allocated', concat(NEW.partition_id, ' ', v_newest), true);
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER messages_allocate BEFORE INSERT ON queen.messages
    FOR EACH ROW WHEN (NEW."offset" IS NULL) EXECUTE FUNCTION queen.on_messages_allocate();
