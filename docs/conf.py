"""How the site is built: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from ncclt import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "ncclt"
author = "The ncclt founders"
version = release = __version__
html_title = f"ncclt {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated_pages"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_extensions", "plugin-author/template"]
html_theme = "furo"
html_show_sphinx = False
html_copy_source = False

autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Heavy, and not needed to read signatures and docstrings.
autodoc_mock_imports = ["pytest", "torch", "scipy", "detect_secrets"]

smartquotes = False  # they would turn -- of an option into a dash
