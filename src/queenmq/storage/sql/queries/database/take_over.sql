-- Give the role of the server everything in this database that the administrator of the bundled PostgreSQL has made:
-- schemas, tables, views, sequences, functions and types. What belongs to PostgreSQL itself, to an extension or to
-- another role stays. All or nothing; locks each of them for a moment.
DO $$
DECLARE
    v_command text;
BEGIN
    FOR v_command IN
        WITH mine AS (
            SELECT 'pg_namespace'::regclass AS catalog, n.oid, format('SCHEMA %I', n.nspname) AS object
            FROM pg_namespace n WHERE n.nspowner = current_user::regrole AND n.oid >= 16384
            UNION ALL
            SELECT 'pg_class'::regclass, c.oid,
                   CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' WHEN 'v' THEN 'VIEW ' WHEN 'm' THEN 'MATERIALIZED VIEW '
                                  WHEN 'f' THEN 'FOREIGN TABLE ' WHEN 'c' THEN 'TYPE ' ELSE 'TABLE ' END || c.oid::regclass::text
            FROM pg_class c
            WHERE c.relowner = current_user::regrole AND c.oid >= 16384 AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c')
              -- A sequence of a column goes with its table.
              AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                              AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
            UNION ALL
            SELECT 'pg_proc'::regclass, p.oid, format('ROUTINE %s', p.oid::regprocedure)
            FROM pg_proc p WHERE p.proowner = current_user::regrole AND p.oid >= 16384
            UNION ALL
            SELECT 'pg_type'::regclass, t.oid, CASE t.typtype WHEN 'd' THEN 'DOMAIN ' ELSE 'TYPE ' END || t.oid::regtype::text
            FROM pg_type t
            WHERE t.typowner = current_user::regrole AND t.oid >= 16384 AND t.typrelid = 0
              -- Arrays and multiranges go with their elements.
              AND t.typelem = 0 AND t.typtype <> 'm'
        )
        SELECT format('ALTER %s OWNER TO queen_server', m.object) FROM mine m
        WHERE NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = m.catalog AND d.objid = m.oid AND d.deptype = 'e')
          AND NOT EXISTS (SELECT 1 FROM pg_class c WHERE m.catalog = 'pg_class'::regclass AND c.oid = m.oid
                          AND c.relnamespace = 'pg_toast'::regnamespace)
    LOOP
        EXECUTE v_command;
    END LOOP;
END $$
