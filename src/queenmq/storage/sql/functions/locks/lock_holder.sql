-- Which session holds a row that queen.find_locked found, for answers and logs: p_kind is head, position, lease or queue, p_names what it is called.
-- A transaction that was prepared for a two-phase commit has no process, only a name. All are null if none is found.
-- Never shows what the holder executes. Takes no locks.
CREATE OR REPLACE FUNCTION queen.lock_holder(
    p_kind text, p_names text[],
    OUT pid integer, OUT application text, OUT username text, OUT state text, OUT open_s double precision, OUT prepared text)
LANGUAGE plpgsql AS $$
DECLARE
    v_part    uuid;
    v_queue   uuid;
    v_holders xid[];
    v_several xid[];
BEGIN
    IF p_kind IN ('head', 'queue') THEN
        SELECT q.id, (SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = p_names[2] LIMIT 1)
        INTO v_queue, v_part FROM queen.queues q WHERE q.name = p_names[1];
        SELECT array_agg(x.xmax) INTO v_holders FROM (
            SELECT l.xmax FROM queen.partition_lookup l WHERE l.partition_id = v_part
            UNION ALL SELECT c.xmax FROM queen.partition_consumers c WHERE c.partition_id = v_part AND c.ready_at IS NULL
            UNION ALL SELECT q.xmax FROM queen.queues q WHERE q.id = v_queue
        ) x;
    ELSIF p_kind = 'position' THEN
        SELECT array_agg(c.xmax) INTO v_holders FROM queen.partition_consumers c
        WHERE c.partition_id = p_names[1]::uuid AND c.consumer_group = p_names[2];
    ELSIF p_kind = 'lease' THEN
        SELECT array_agg(c.xmax) INTO v_holders FROM queen.partition_consumers c WHERE c.lease_id = p_names[1]::uuid;
    END IF;
    -- Several lockers of a row share a number, which cannot be distinguished from that of a transaction.
    FOR i IN 1 .. coalesce(cardinality(v_holders), 0) LOOP
        BEGIN
            SELECT array_agg(m.xid) INTO v_several FROM pg_get_multixact_members(v_holders[i]) m;
            v_holders := v_holders || v_several;
        EXCEPTION WHEN OTHERS THEN
            NULL;       -- it is no such number
        END;
    END LOOP;

    SELECT k.pid, a.application_name, a.usename, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)
    INTO pid, application, username, state, open_s
    FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
    WHERE k.locktype = 'transactionid' AND k.granted AND k.mode = 'ExclusiveLock' AND k.transactionid = ANY (v_holders)
      AND k.pid IS NOT NULL AND k.pid <> pg_backend_pid()
    ORDER BY a.xact_start LIMIT 1;
    IF NOT FOUND THEN
        SELECT p.gid, extract(epoch FROM clock_timestamp() - p.prepared) INTO prepared, open_s
        FROM pg_prepared_xacts p WHERE p.transaction = ANY (v_holders) ORDER BY p.prepared LIMIT 1;
    END IF;
END $$;
