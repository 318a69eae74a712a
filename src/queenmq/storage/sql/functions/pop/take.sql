-- Finish leases and pop in one transaction: queen.finish_leases with the arguments of the same names, then queen.pop with the others.
-- A row is of the one (finishing is not null) or of the other (request is not null). Neither half is undone by the other: if something
-- that a pop would have to write is locked, the pops find nothing for half a second and the leases are finished.
-- Locks: what queen.finish_leases and then queen.pop take, which waits for no row of partition_consumers.
CREATE OR REPLACE FUNCTION queen.take(
    p_finish uuid[], p_status text[], p_error text[], p_except_of integer[], p_except_partition uuid[], p_except_transaction text[],
    p_except_status text[], p_except_error text[],
    p_queue text[], p_partition text[], p_group text[], p_batch integer[], p_partitions integer[], p_auto_ack boolean[],
    p_lease uuid[], p_answer_bytes bigint, p_bytes bigint, p_key text[] DEFAULT NULL)
RETURNS TABLE (finishing integer, exception integer, problem text, queue_name text, finished_in text, consumer_group text,
               messages integer, dead_lettered integer, request integer, partition_id uuid, partition_name text, message_count integer,
               glued bytea, has_sealed boolean, first_created_at timestamptz, ready_in_ms double precision)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT f.*, NULL::integer, NULL::uuid, NULL::text, NULL::integer, NULL::bytea, NULL::boolean, NULL::timestamptz,
           NULL::double precision
    FROM queen.finish_leases(p_finish, p_status, p_error, p_except_of, p_except_partition, p_except_transaction, p_except_status,
                             p_except_error) f;
    BEGIN
        RETURN QUERY
        SELECT NULL::integer, NULL::integer, NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer, p.*
        FROM queen.pop(p_queue, p_partition, p_group, p_batch, p_partitions, p_auto_ack, p_lease, p_answer_bytes, p_bytes, p_key) p;
    EXCEPTION WHEN lock_not_available THEN
        RETURN QUERY
        SELECT NULL::integer, NULL::integer, NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer,
               t.i::integer, NULL::uuid, NULL::text, NULL::integer, NULL::bytea, NULL::boolean, NULL::timestamptz,
               500::double precision
        FROM unnest(p_queue) WITH ORDINALITY AS t (name, i);
    END;
END $$;
