-- The groups of a queue ($1), up to $2.
SELECT name FROM queen.groups_of($1, $2)
