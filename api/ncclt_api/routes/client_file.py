"""The client as one file, for images without ncclt."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from ncclt import __version__
from ncclt_api.access import PUBLIC

router = APIRouter()

_FROM_EACH_OTHER = re.compile(r"^(?:# Relative.*\n)?from \.\w+ import .*\n", re.MULTILINE)
_FUTURE = "from __future__ import annotations\n"


@router.get("/client.py", include_in_schema=False, dependencies=PUBLIC)
def get_client() -> Response:
    """Return the file: `curl URL/client.py > client.py; python3 client.py --server URL --cluster C --model M ...`."""
    return Response(one_file(), media_type="text/x-python", headers={"Cache-Control": "max-age=3600"})


@cache
def one_file() -> str:
    """Return the modules of `ncclt.client` one after the other."""
    folder = resources.files("ncclt.client")
    sources = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in ("answer", "fetch", "__main__")]
    parts = [_FROM_EACH_OTHER.sub("", source.replace(_FUTURE, "")) for source in sources]
    return "\n\n".join([f"# The client of ncclt {__version__}.", _FUTURE, *parts])
