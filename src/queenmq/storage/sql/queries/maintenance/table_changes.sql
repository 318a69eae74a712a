-- How often rows of a table were changed; null if it was vacuumed within so many seconds.
SELECT n_tup_upd + n_tup_del FROM pg_stat_user_tables
WHERE schemaname = 'queen' AND relname = $1
  AND (last_vacuum IS NULL OR last_vacuum <= clock_timestamp() - make_interval(secs => $2))
