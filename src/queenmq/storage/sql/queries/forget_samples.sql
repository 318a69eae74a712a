DELETE FROM queen.server_samples WHERE bucket < clock_timestamp() - make_interval(days => $1)
