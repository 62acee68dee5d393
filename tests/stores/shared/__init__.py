"""Tests that several stores run: each says in its `Backend` how it is reached, and inherits the classes."""
