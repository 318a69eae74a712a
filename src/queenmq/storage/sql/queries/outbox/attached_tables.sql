-- Tables whose changes are sent (queen.attach), by name. `arguments` are those of the trigger, each with a zero byte behind it.
SELECT format('%I.%I', n.nspname, c.relname) AS "table", t.tgargs AS arguments, t.tgenabled = 'D' AS is_disabled
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgfoid = 'queen.on_row_change'::regproc AND t.tgparentid = 0 AND t.tgname NOT LIKE '%\_truncate'
ORDER BY 1, t.tgname
