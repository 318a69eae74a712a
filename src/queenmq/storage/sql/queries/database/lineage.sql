-- Which PostgreSQL this is: its system identifier, and the timeline that it writes (in the names of its WAL files).
-- Managed services may refuse it.
SELECT s.system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer AS timeline
FROM pg_control_system() s
