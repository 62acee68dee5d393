"""The engine: claim, handle, settle, drain. It knows no database and no FastStream."""
