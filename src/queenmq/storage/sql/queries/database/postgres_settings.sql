SELECT name, setting, unit FROM pg_settings
WHERE name IN ('shared_buffers', 'effective_cache_size', 'work_mem', 'maintenance_work_mem', 'max_connections', 'wal_buffers',
               'checkpoint_timeout', 'max_wal_size', 'synchronous_commit', 'fsync', 'autovacuum')
ORDER BY name
