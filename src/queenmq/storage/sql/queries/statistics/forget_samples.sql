-- Delete the samples of every server that are older than $1 days.
DELETE FROM queen.server_samples USING queen.servers
WHERE server = id AND bucket < now() - make_interval(days => $1)
