SELECT queen.delete_queue($1) AS existed, nextval('queen.versions') AS version
