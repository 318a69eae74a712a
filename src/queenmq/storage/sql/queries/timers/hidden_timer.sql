-- The moment of the oldest timer before the floor: none, unless rows were changed while triggers were off, or the clock was set back.
-- It reads everything that was pushed and cannot be removed.
SELECT t.next_attempt_at FROM queen.timers t
WHERE t.next_attempt_at < (SELECT f.floor FROM queen.timer_floors f ORDER BY f.id DESC LIMIT 1)
ORDER BY t.next_attempt_at LIMIT 1
