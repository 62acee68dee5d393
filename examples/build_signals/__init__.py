"""Builds that run elsewhere, followed by a message that postpones itself until they have ended."""
