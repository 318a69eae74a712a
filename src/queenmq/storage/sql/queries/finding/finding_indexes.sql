-- The indexes over all messages that exist and can be used: they are made on request only (`queen db index`), because every push pays for them.
SELECT c.relname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'queen'::regnamespace AND c.relname IN ('messages_found_by_transaction', 'messages_found_by_headers') AND i.indisvalid
