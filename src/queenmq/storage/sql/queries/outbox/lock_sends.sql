-- Those of these messages that are still there, while no other server moves any.
SELECT o.sending, o.position FROM unnest($1::bigint[], $2::bigint[]) AS t (sending, position)
JOIN queen.outbox o ON o.sending = t.sending AND o.position = t.position
WHERE (SELECT pg_try_advisory_xact_lock(hashtextextended('queen.outbox', 0)))
ORDER BY o.sending, o.position FOR UPDATE OF o
