-- A message was made older by hand: what says how old its partition is (queen.partition_ages) follows.
CREATE OR REPLACE FUNCTION queen.on_messages_date() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE queen.partition_ages
    SET oldest_at = least(oldest_at, NEW.created_at), unread_at = least(unread_at, NEW.created_at), kept_at = NULL
    WHERE partition_id = NEW.partition_id AND (oldest_at > NEW.created_at OR unread_at > NEW.created_at);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER messages_date AFTER UPDATE OF created_at ON queen.messages
    FOR EACH ROW WHEN (NEW.created_at < OLD.created_at) EXECUTE FUNCTION queen.on_messages_date();
