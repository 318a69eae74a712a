-- To find partitions by the beginnings of words and numbers in their names, without an extension. Only functions of PostgreSQL itself: an
-- index outlives the functions of a version. `queries/finding/find_partitions.sql` has the same expression.
CREATE INDEX CONCURRENTLY partitions_words ON queen.partitions USING gin (array_to_tsvector(array_remove(
    regexp_split_to_array(lower(name), '[^a-z0-9]+|(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])'), ''))) WITH (gin_pending_list_limit = 128);
