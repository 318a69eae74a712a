SELECT position FROM queen.partition_consumers WHERE partition_id = $1 AND consumer_group = $2
