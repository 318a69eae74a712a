-- Who has permits of the locks in these namespaces ($1), at most $2 of each.
SELECT n.namespace, k.key AS slot, k.value ->> 'owner' AS owner, k.value ->> 'since' AS since, k.expires_at, k.updated_at AS renewed_at
FROM unnest($1::text[]) AS n (namespace) CROSS JOIN LATERAL (
    SELECT * FROM queen.kv k WHERE k.namespace = n.namespace AND k.expires_at > clock_timestamp() ORDER BY k.key LIMIT $2
) k
ORDER BY n.namespace, k.key
