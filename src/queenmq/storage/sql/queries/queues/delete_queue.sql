SELECT d.*, nextval('queen.versions') AS version FROM queen.delete_queue($1, $2, $3, $4) d
