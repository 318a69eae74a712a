-- Up to $1 groups that have subscribed and do not have all of their rows yet (see queen.subscribe).
SELECT queue_name, name FROM queen.consumer_groups WHERE placed_upto IS NOT NULL ORDER BY queue_name, name LIMIT $1
