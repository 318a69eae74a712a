-- Null if there is no floor yet, or if somebody else moves it.
SELECT nullif(queen.move_timer_floor(), '-infinity')
