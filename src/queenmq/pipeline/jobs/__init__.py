"""One file a job of `queen pipeline`. A job takes a session, its settings and its run, and returns an Outcome."""
