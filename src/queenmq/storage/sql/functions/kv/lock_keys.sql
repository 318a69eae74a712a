-- Keep everybody else from changing these keys to the end of the transaction, also those that do not exist.
-- Locks: advisory ones, in the order of their numbers, so that two calls cannot wait for each other.
CREATE OR REPLACE FUNCTION queen.lock_keys(p_namespaces text[], p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
BEGIN
    FOR v_number IN
        SELECT DISTINCT hashtextextended(t.namespace || chr(31) || t.key, 7261) AS number
        FROM unnest(p_namespaces, p_keys) AS t (namespace, key) ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(v_number);
    END LOOP;
END $$;
