"""What servers tell each other so that they ask the database less. Advice only: PostgreSQL is the truth."""
