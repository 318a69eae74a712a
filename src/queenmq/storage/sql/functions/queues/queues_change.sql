-- Every change of a queue gives it a new version, also one by a psql session. Without maxSize its size is not kept any more.
CREATE OR REPLACE FUNCTION queen.on_queues_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.max_size = 0 AND OLD.max_size > 0 THEN
        DELETE FROM queen.queue_sizes WHERE queue_id = NEW.id;
        DELETE FROM queen.queue_size_changes WHERE queue_id = NEW.id;
    END IF;
    NEW.version := nextval('queen.versions');
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER queues_change BEFORE UPDATE ON queen.queues
    FOR EACH ROW EXECUTE FUNCTION queen.on_queues_change();
