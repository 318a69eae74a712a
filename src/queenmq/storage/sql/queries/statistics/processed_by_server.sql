-- How many messages were finished by acknowledgements to each server between $1 and $2.
SELECT a.server, sum(a.ack_success)::bigint AS processed
FROM queen.activity a
WHERE a.queue_name = '' AND a.bucket >= $1 AND a.bucket <= $2 AND a.bucket > '-infinity'
GROUP BY a.server
