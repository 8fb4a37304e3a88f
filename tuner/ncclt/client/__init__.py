"""Ask a server, with the standard library alone: this folder can be copied into any training image."""
