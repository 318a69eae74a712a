SELECT id FROM queen.claim_administration($1, $2) AS claimed (id)
