-- How many dead letters a queue ($1) and a group ($2) have, each if given; from the counts.
SELECT (coalesce((SELECT sum(d.letters) FROM queen.dead_letter_counts d
                  WHERE $1::text IS NULL AND d.queue_id NOT IN (SELECT q.id FROM queen.queues q WHERE q.name IS NULL) AND ($2::text IS NULL OR d.consumer_group = $2)), 0)
        + coalesce((SELECT sum(d.letters) FROM queen.dead_letter_counts d
                    WHERE d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1)
                      AND ($2::text IS NULL OR d.consumer_group = $2)), 0))::bigint AS letters
