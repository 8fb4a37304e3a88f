"""Print the OpenAPI document: `python -m ncclt_api.openapi > docs/openapi.json`."""

from __future__ import annotations

import json
import sys

from ncclt_api.app import create_app


def openapi_text() -> str:
    """Return the document as it is committed: stable order, one final newline."""
    app = create_app("sqlite://")  # never opened: the description needs no store
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(openapi_text())
