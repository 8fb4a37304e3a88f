"""Names of `tune` under which commands that are not converted yet import them."""

from ncclt.cli.tune import build_result_document as result_document
from ncclt.cli.tune import print_result

__all__ = ["print_result", "result_document"]
