-- As pop_leased, with the key whose turn it is for each request ($11).
SELECT p.* FROM (
    SELECT CASE WHEN current_setting('synchronous_standby_names') = '' THEN set_config('synchronous_commit', 'off', true) END AS relaxed,
           set_config('lock_timeout', $10, true) AS done
) t, LATERAL queen.pop(CASE WHEN t.done IS NOT NULL THEN $1::text[] END, $2, $3, $4, $5, $6, $7, $8, $9, $11) p
