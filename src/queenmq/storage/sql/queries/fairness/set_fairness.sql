SELECT queen.set_fairness($1, $2, $3, $4)
