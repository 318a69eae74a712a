VACUUM (SKIP_LOCKED, TRUNCATE false) queen.partition_consumers
