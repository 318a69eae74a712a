-- Which of these settings the present session has, and whose session it is.
SELECT s.name, s.setting, quote_ident(current_user) AS role FROM pg_settings s WHERE s.name = ANY ($1::text[]) ORDER BY s.name
