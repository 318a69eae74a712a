-- Let pipelines run, stop or be removed. Returns those that there are.
UPDATE queen.pipelines SET wanted = $2::text, asked = asked + 1, changed_at = clock_timestamp()
WHERE name = ANY ($1::text[]) AND wanted <> 'removed' RETURNING name
