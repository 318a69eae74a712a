-- Remove what was sent to queues that are deleted and is not pushed yet. What a server is just moving is left to it, as a push that
-- comes at the same time.
-- Locks: the rows of the outbox that are free.
CREATE OR REPLACE FUNCTION queen.forget_sends(p_queues text[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM queen.outbox o
    USING (SELECT sending, position FROM queen.outbox WHERE queue_name = ANY (p_queues) FOR UPDATE SKIP LOCKED) f
    WHERE o.sending = f.sending AND o.position = f.position
$$;
