-- The messages of claimed operations, in the transaction of queen.hold_operations.
SELECT * FROM queen.push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'now')
