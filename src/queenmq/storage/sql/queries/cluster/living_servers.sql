-- The servers that run, or may run: those that were seen lately and have not said that they stop. What they are is null for a server that is
-- older than queen.server_versions.
SELECT s.id, v.release, v.schema_version, v.function_set,
       extract(epoch FROM clock_timestamp() - s.seen_at)::double precision AS seen_s,
       extract(epoch FROM s.seen_at + coalesce(v.alive_for, interval '3 minutes') - clock_timestamp())::double precision AS counts_s
FROM queen.servers s
LEFT JOIN queen.server_versions v ON v.server_id = s.id AND v.epoch = s.epoch
WHERE NOT coalesce(v.has_stopped, false)
  AND s.seen_at > clock_timestamp() - coalesce(v.alive_for, interval '3 minutes')
ORDER BY s.id
