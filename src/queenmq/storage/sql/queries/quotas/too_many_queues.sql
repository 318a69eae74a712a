-- Whether there are $1 queues or more. Reads so many entries of an index.
SELECT count(*) >= $1 FROM (SELECT 1 FROM queen.queues LIMIT $1) q
