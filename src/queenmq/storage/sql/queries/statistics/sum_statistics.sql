SELECT queen.sum_statistics($1, $2, $3)
