-- Where the search for timers that are due begins: behind those that were pushed and that PostgreSQL cannot remove because somebody holds the
-- horizon. No timer has a next_attempt_at before `floor`, and none will (see queen.move_timer_floor); `pending_at` and `holders` are for its next
-- move. Only the newest row counts, so that it is found first.
CREATE TABLE queen.timer_floors (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    floor       timestamptz NOT NULL,
    pending_at  timestamptz,
    holders     text[] NOT NULL
);
