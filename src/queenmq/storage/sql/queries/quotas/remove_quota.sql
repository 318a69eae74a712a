-- Remove the quota of a namespace ($1); no row if it has none.
DELETE FROM queen.quotas WHERE namespace = $1 RETURNING namespace
