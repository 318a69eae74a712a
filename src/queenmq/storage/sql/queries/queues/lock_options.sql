-- Wait for others who configure the queue ($1), also if it does not exist yet. A statement of its own: what follows must see what they have done.
SELECT pg_advisory_xact_lock(hashtextextended('queen.configure ' || $1::text, 0))
