INSERT INTO queen.maintenance (switch, is_on, version) VALUES ($1, $2, nextval('queen.versions'))
ON CONFLICT (switch) DO UPDATE
SET is_on = excluded.is_on, version = nextval('queen.versions'), changed_at = clock_timestamp()
RETURNING version
