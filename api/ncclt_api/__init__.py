"""The ncclt service: recommendations over HTTP, and pages to browse the studies."""
