-- Allocate the offset of a row that comes without one (a psql session's INSERT). queen.push brings its own.
-- Locks: the partition's row in partition_lookup, to the end of the transaction.
CREATE OR REPLACE FUNCTION queen.on_messages_allocate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE queen.partition_lookup SET last_offset = last_offset + 1
    WHERE partition_id = NEW.partition_id
    RETURNING last_offset, greatest(NEW.created_at, last_message_at) INTO NEW."offset", NEW.created_at;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING MESSAGE = format('partition %s does not exist', NEW.partition_id);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER messages_allocate BEFORE INSERT ON queen.messages
    FOR EACH ROW WHEN (NEW."offset" IS NULL) EXECUTE FUNCTION queen.on_messages_allocate();
