"""Names of `render` under which commands that are not converted yet import them."""

from ncclt.cli.render import build_launch_document as launch_row
from ncclt.cli.render import print_launches

__all__ = ["launch_row", "print_launches"]
