-- The backend of this session, as others see it; behind a pooler it is not the one that the connection reports. And let the
-- database notice, too, that this server has vanished: within minutes instead of hours, and sooner if it had a transaction open.
-- Set here and not when connecting, because poolers refuse parameters that they do not know.
SELECT a.pid, a.backend_start
FROM pg_stat_activity a
CROSS JOIN (
    SELECT set_config('idle_in_transaction_session_timeout', $1, false), set_config('tcp_keepalives_idle', '60', false),
           set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '6', false)
    OFFSET 0
) s
WHERE a.pid = pg_backend_pid()
