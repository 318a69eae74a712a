SELECT * FROM queen.stale_lookup() LIMIT $1
