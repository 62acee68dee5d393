"""Orders over HTTP and their messages in one FastAPI application: one database, one transaction, one lifespan."""
