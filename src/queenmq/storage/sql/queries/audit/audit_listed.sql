-- A page of the audit log, newest first: of a subject ($1), with $2 in the action, with a status ($3), between $4 and $5, each if given.
SELECT a.* FROM queen.audit_log a
WHERE ($1::text IS NULL OR a.subject = $1) AND ($2::text IS NULL OR strpos(lower(a.action), lower($2)) > 0)
  AND ($3::integer IS NULL OR a.status = $3) AND ($4::timestamptz IS NULL OR a.until >= $4) AND ($5::timestamptz IS NULL OR a.at <= $5)
ORDER BY a.id DESC LIMIT $6 OFFSET $7
