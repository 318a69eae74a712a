-- How much a token may ask for; empty: as much as it likes.
ALTER TABLE queen.tokens ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
