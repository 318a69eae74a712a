-- Tables that have more than ten times the rows that they had at the last VACUUM or ANALYZE. One that has seen neither
-- (-1) is judged by its size.
SELECT 'queen.' || quote_ident(c.relname) FROM pg_class c
WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind = 'r' AND c.reltuples >= 0
  AND pg_stat_get_live_tuples(c.oid) > greatest(200, 10 * c.reltuples)
