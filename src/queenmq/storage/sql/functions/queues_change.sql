-- Every change of a queue gives it a new version, whoever makes it.
CREATE OR REPLACE FUNCTION queen.on_queues_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := nextval('queen.versions');
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER queues_change BEFORE UPDATE ON queen.queues
    FOR EACH ROW EXECUTE FUNCTION queen.on_queues_change();
