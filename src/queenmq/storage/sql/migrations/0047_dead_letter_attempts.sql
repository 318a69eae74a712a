-- How many deliveries of the message had failed when it became a dead letter, the last one included, which retry_count does not count. Null if a
-- server of the version before, or before this migration, wrote the letter.
ALTER TABLE queen.dead_letter_queue ADD COLUMN attempts integer;
