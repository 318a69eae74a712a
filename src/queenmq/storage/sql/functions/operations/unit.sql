-- What the progress of an operation counts.
CREATE OR REPLACE FUNCTION queen.unit(p_kind text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_kind WHEN 'delete_queue' THEN 'messages and partitions' WHEN 'redrive' THEN 'dead letters'
                       WHEN 'redrive_matching' THEN 'dead letters'
                       WHEN 'seek' THEN 'partitions' WHEN 'retention' THEN 'partitions' ELSE 'messages' END
$$;
