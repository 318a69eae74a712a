-- About how many messages and dead letters there are, as PostgreSQL has counted them when it last did.
SELECT greatest(sum(c.reltuples), 0)::float8 FROM pg_class c WHERE c.oid IN ('queen.messages'::regclass, 'queen.dead_letter_queue'::regclass)
