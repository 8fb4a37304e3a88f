"""The pure heart of ncclt: no files, processes, clock, environment or database in here."""
