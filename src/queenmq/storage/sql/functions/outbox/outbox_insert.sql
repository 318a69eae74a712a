-- Number a transaction that has sent messages when it commits, and notify the servers. A transaction that begins to commit after
-- another has committed gets the higher number; two that commit at the same time get any.
-- Transactions with a NOTIFY commit one after the other, so only one at a time has one: a server that was woken checks again and again
-- for a while, and finds the others. `SET queen.announce = off` keeps a session quiet, which two-phase commits need.
-- It runs with the rights of its owner, because at the commit queen.send has ended; so no other table may have it as a trigger.
-- Locks: an advisory one, if it is free.
CREATE OR REPLACE FUNCTION queen.on_outbox_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID <> 'queen.outbox'::regclass THEN
        RAISE insufficient_privilege USING MESSAGE = 'queen.on_outbox_insert is for queen.outbox only';
    END IF;
    INSERT INTO queen.outbox_commits (sending) VALUES (NEW.sending);
    IF current_setting('queen.announce', true) IS DISTINCT FROM 'off'
       AND pg_try_advisory_xact_lock(hashtextextended('queen_sent', 0)) THEN
        PERFORM pg_notify('queen_sent', '');
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION queen.on_outbox_insert() FROM PUBLIC;

CREATE CONSTRAINT TRIGGER outbox_insert AFTER INSERT ON queen.outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.is_first) EXECUTE FUNCTION queen.on_outbox_insert();
