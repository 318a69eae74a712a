SELECT * FROM queen.resync_lookup($1, $2)
