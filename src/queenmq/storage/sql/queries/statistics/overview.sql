-- The sums over the queues of a name ($1), namespace ($2) and task ($3), each if given; from the statistics.
-- `age_s` is the age of the oldest figures of queues to which something was done since: those of a quiet queue are right, however old they are, and
-- large ones are measured rarely. If no server has written what was done for longer than that, it is as old as what was written last.
WITH chosen AS MATERIALIZED (
    SELECT q.id, q.name, q.namespace, q.task FROM queen.queues q
    WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR q.namespace = $2) AND ($3::text IS NULL OR q.task = $3)
), lag AS (
    SELECT extract(epoch FROM clock_timestamp() - g.oldest_unread_at)::double precision AS seconds, g.lag AS messages
    FROM chosen JOIN queen.group_statistics g ON g.queue_id = chosen.id WHERE g.lag > 0
)
SELECT count(*) AS queues, count(DISTINCT nullif(chosen.namespace, '')) AS namespaces,
       count(DISTINCT nullif(chosen.task, '')) AS tasks,
       coalesce(sum(s.partitions), 0)::bigint AS partitions, coalesce(sum(s.total), 0)::bigint AS total,
       coalesce(sum(s.pending), 0)::bigint AS pending, coalesce(sum(s.processing), 0)::bigint AS processing,
       coalesce(sum(s.total - s.pending - s.processing), 0)::bigint AS completed,
       coalesce(sum(s.failed), 0)::bigint AS failed, coalesce(sum(s.dead_letters), 0)::bigint AS dead_letters,
       coalesce(sum(s.consumed), 0)::bigint AS consumed, coalesce(sum(s.leases), 0)::bigint AS leases,
       greatest(0, extract(epoch FROM clock_timestamp() - min(coalesce(s.since, s.reckoned_at)) FILTER (
           WHERE coalesce(s.since, s.reckoned_at) > clock_timestamp() - interval '2 minutes' OR s.leases > 0 OR EXISTS (
               SELECT 1 FROM queen.activity a
               WHERE a.queue_name = chosen.name AND a.bucket >= date_trunc('minute', coalesce(s.since, s.reckoned_at))
                 AND a.push_messages + a.pop_messages + a.ack_requests + a.dead_lettered + a.transactions + a.retained + a.evicted > 0))),
           -- A bucket is a minute, and its row is written as long as it lasts.
           extract(epoch FROM clock_timestamp() - interval '2 minutes' - (SELECT max(a.bucket) FROM queen.activity a WHERE a.queue_name = '')))::double precision AS age_s,
       (SELECT coalesce(sum(g.leased), 0)::bigint FROM chosen JOIN queen.group_statistics g ON g.queue_id = chosen.id) AS leased,
       (SELECT avg(seconds) FROM lag) AS lag_avg_s,
       (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FROM lag) AS lag_median_s,
       (SELECT min(seconds) FROM lag) AS lag_min_s, (SELECT max(seconds) FROM lag) AS lag_max_s,
       (SELECT avg(messages)::double precision FROM lag) AS lag_avg,
       (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY messages) FROM lag) AS lag_median,
       (SELECT min(messages) FROM lag) AS lag_min, (SELECT max(messages) FROM lag) AS lag_max,
       clock_timestamp() AS now
FROM chosen LEFT JOIN queen.queue_statistics s ON s.queue_id = chosen.id
