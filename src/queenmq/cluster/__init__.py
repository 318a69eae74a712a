"""Messages between servers, which save database calls. They are hints only: PostgreSQL decides."""
