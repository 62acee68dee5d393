"""Builds that run elsewhere, each followed by a message that postpones itself until the build has ended."""
