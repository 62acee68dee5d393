"""Durable messages, delivered when they are due, from the database you already have."""
