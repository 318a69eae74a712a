SELECT n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE schemaname = 'queen' AND relname = $1
