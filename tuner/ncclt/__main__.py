"""`python -m ncclt`."""

from ncclt.cli import main

main()
