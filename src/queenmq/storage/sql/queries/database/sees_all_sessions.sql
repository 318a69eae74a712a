-- Whether this role is shown the state and the age of other roles' sessions.
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all
