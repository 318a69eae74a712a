-- Allocate the offset of a row that comes without one (a psql session's INSERT), and tell the servers of it at the commit.
-- queen.push brings its own, and its server knows.
-- Locks, to the end of the transaction: the partition's row in partition_lookup; an advisory one, if nobody has it.
CREATE OR REPLACE FUNCTION queen.on_messages_allocate() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_queue uuid;
BEGIN
    PERFORM convert_from(NEW.payload, 'UTF8')::json;    -- it goes out as it is, so it must be JSON
    SELECT queue_id, last_offset + 1, greatest(NEW.created_at, last_message_at)
    INTO v_queue, NEW."offset", NEW.created_at
    FROM queen.partition_lookup WHERE partition_id = NEW.partition_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('partition %s does not exist', NEW.partition_id);
    END IF;
    -- A row that will be refused for its transaction id (ON CONFLICT DO NOTHING) must not use up an offset.
    PERFORM 1 FROM queen.messages
    WHERE partition_id = NEW.partition_id AND transaction_id = NEW.transaction_id;
    IF NOT FOUND THEN
        UPDATE queen.partition_lookup SET last_offset = NEW."offset" WHERE partition_id = NEW.partition_id;
        -- Transactions with a NOTIFY commit one after the other, each with a flush of its own. So that those of many sessions are
        -- not held up, four at most have one at a time; long polls find the messages of the others at their next look.
        IF pg_try_advisory_xact_lock(hashtextextended('queen_written', hashtext(v_queue::text) & 3)) THEN
            PERFORM pg_notify('queen_written', name) FROM queen.queues WHERE id = v_queue;
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER messages_allocate BEFORE INSERT ON queen.messages
    FOR EACH ROW WHEN (NEW."offset" IS NULL) EXECUTE FUNCTION queen.on_messages_allocate();
