SELECT measured, more, unmeasured FROM queen.measure_page($1, $2, $3, $4, $5)
