SELECT * FROM queen.drop_idle_partitions(clock_timestamp() - make_interval(days => $1), $2)
