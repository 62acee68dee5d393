"""The conformance suite on other versions of servers and of Python."""
