-- Set the quota of a namespace ($1) to $2 messages and $3 bytes, $4 requests and $5 messages a second, and $6 long polls; null sets no limit.
INSERT INTO queen.quotas (namespace, max_messages, max_bytes, requests_per_second, messages_per_second, long_polls)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (namespace) DO UPDATE
SET max_messages = excluded.max_messages, max_bytes = excluded.max_bytes, requests_per_second = excluded.requests_per_second,
    messages_per_second = excluded.messages_per_second, long_polls = excluded.long_polls, changed_at = clock_timestamp()
