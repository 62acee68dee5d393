"""The FastStream integration. What is public of it is imported from `nightmail`."""
