SELECT queen.lower_timer_floor($1)
