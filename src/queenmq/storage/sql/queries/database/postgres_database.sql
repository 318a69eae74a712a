SELECT datname AS name, numbackends AS connections, xact_commit AS commits, xact_rollback AS rollbacks, blks_read, blks_hit,
       tup_inserted, tup_updated, tup_deleted, deadlocks, temp_bytes, pg_database_size(datname) AS size_bytes,
       round(blks_hit * 100.0 / nullif(blks_hit + blks_read, 0), 2)::double precision AS hit_ratio,
       current_setting('server_version') AS version,
       coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS tls
FROM pg_stat_database WHERE datname = current_database()
