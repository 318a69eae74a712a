-- Headers of messages: a map of strings to strings, null for none. Servers of the version before neither read nor write them.
ALTER TABLE queen.messages ADD COLUMN headers jsonb;
ALTER TABLE queen.dead_letter_queue ADD COLUMN headers jsonb;
ALTER TABLE queen.timers ADD COLUMN headers jsonb;
ALTER TABLE queen.outbox ADD COLUMN headers jsonb;
-- Of a push: null if none of its messages has any.
ALTER TABLE queen.operation_queue ADD COLUMN headers jsonb[];
