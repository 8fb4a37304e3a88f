"""Read plain tables of messages."""
