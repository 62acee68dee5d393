"""Questions of an operator, answered as values: the command line shows them, as may a dashboard or metrics."""
