-- Set the quota of a namespace ($1) to $2 messages and $3 bytes.
INSERT INTO queen.quotas (namespace, max_messages, max_bytes) VALUES ($1, $2, $3)
ON CONFLICT (namespace) DO UPDATE SET max_messages = excluded.max_messages, max_bytes = excluded.max_bytes, changed_at = clock_timestamp()
