-- The positions of a group ($2) in a queue ($1, its id): in one partition ($3, its id), or in those $5 first that a pop comes to. $4: whether a
-- pop that says nothing starts with new messages.
SELECT * FROM queen.list_positions($1, $2, $3, $4, $5)
