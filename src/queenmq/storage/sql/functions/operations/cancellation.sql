-- What a cancelled operation has done, in a sentence.
CREATE OR REPLACE FUNCTION queen.cancellation(o queen.operation_queue) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'Cancelled ' || CASE WHEN o.done = 0 AND o.cursor IS NULL THEN 'before anything was done.' ELSE
        format('after %s%s %s; what was done stays, and the rest is untouched.', o.done,
               CASE WHEN o.total >= o.done THEN ' of ' || o.total ELSE '' END, queen.unit(o.kind)) END
        || CASE WHEN o.kind = 'delete_queue' THEN ' The queue itself has been gone since the deletion was accepted; what is left of it'
                || ' cannot be reached, and is removed by a retry or, later, by retention.' ELSE '' END
$$;
