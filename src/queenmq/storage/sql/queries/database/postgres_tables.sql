-- The tables of Queen with what PostgreSQL has counted about them.
SELECT s.relname AS table, pg_total_relation_size(s.relid) AS total_bytes, pg_relation_size(s.relid) AS table_bytes,
       pg_indexes_size(s.relid) AS index_bytes, s.n_live_tup AS live, s.n_dead_tup AS dead, s.n_tup_upd AS updates,
       s.n_tup_hot_upd AS hot_updates, s.last_vacuum, s.last_autovacuum, s.last_analyze, s.last_autoanalyze, s.vacuum_count,
       s.autovacuum_count, io.heap_blks_read, io.heap_blks_hit, io.idx_blks_read, io.idx_blks_hit
FROM pg_stat_user_tables s JOIN pg_statio_user_tables io ON io.relid = s.relid
WHERE s.schemaname = 'queen' ORDER BY 2 DESC
