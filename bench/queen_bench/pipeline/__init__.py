"""`queen pipeline bench`: what Spark reads from Queen and writes to it, measured beside other ways to do the same."""
