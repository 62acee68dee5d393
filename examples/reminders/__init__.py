"""Invoice reminders, on Redis alone. `python -m examples.reminders [url]` runs it."""
