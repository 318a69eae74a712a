-- An operation that failed waits before its next attempt, and nothing younger of its partition overtakes it meanwhile.

ALTER TABLE queen.operation_queue
    ADD COLUMN next_attempt_at timestamptz,             -- null: at once; infinity: blocked, until somebody retries or cancels it
    ADD COLUMN faults integer NOT NULL DEFAULT 0,       -- attempts that failed for what it contains; max_attempts bounds only these
    ADD COLUMN items integer;                           -- the messages of a push
UPDATE queen.operation_queue SET items = cardinality(message_ids) WHERE message_ids IS NOT NULL;

-- What becomes of a push that was accepted with 202 and that the database refuses for its content: it blocks its partition, or it
-- is set aside (`failed`) and those behind it go on.
ALTER TABLE queen.queues ADD COLUMN set_aside_failed_pushes boolean NOT NULL DEFAULT false;
