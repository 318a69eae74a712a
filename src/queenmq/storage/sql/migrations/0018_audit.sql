-- Who has changed or was refused what. Nothing refers to it, and rows are only added, and deleted when they are old.
CREATE TABLE queen.audit_log (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL,
    until          timestamptz NOT NULL,        -- the last of `count` requests
    count          integer NOT NULL,
    subject        text,
    role           text,
    token_id       uuid,                        -- of a token that Queen has made
    action         text NOT NULL,
    target         text,
    detail         text,
    address        text,
    forwarded_for  text,
    status         integer NOT NULL,
    error          text,
    operation_id   uuid,
    server         text NOT NULL
);
CREATE INDEX audit_log_at ON queen.audit_log (at);

-- Who has begun an operation.
ALTER TABLE queen.operation_queue ADD COLUMN subject text;
