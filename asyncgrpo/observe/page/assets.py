"""The page's own files: plain HTML, CSS and JavaScript beside this module, as they are or put into one file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

__all__ = ["ASSETS", "CONTENT_TYPES", "index_html", "one_file", "read_asset"]

SCRIPTS: Sequence[str] = (
    "base.js", "shapes.js", "chart.js", "curves.js", "numbers.js", "timeline.js", "tokens.js", "rollouts.js",
    "settings.js", "main.js",
)  # fmt: skip
"""In the order in which they are run."""
ASSETS: Sequence[str] = ("page.css", "icon.svg", *SCRIPTS)
CONTENT_TYPES: Mapping[str, str] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def read_asset(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def index_html() -> str:
    """The page that loads its files from `static/`."""
    scripts = "\n".join(f'<script src="static/{name}" defer></script>' for name in SCRIPTS)
    head = f'<link rel="icon" href="static/icon.svg">\n<link rel="stylesheet" href="static/page.css">\n{scripts}'
    return read_asset("index.html").replace("<!-- HEAD -->", head)


def one_file(data: bytes) -> str:
    """The page with its files and `data`, JSON, inside. Scripts and style are allowed by their hashes, no others."""
    style, scripts = read_asset("page.css"), [read_asset(name) for name in SCRIPTS]
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, scripts))}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(read_asset("icon.svg").encode()).decode()
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">',
        f"<style>{style}</style>",
    ]
    # Nothing in the data can end the element that holds it, or begin a comment in it.
    safe = re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", data.decode())
    tail = [f'<script type="application/json" id="data">{safe}</script>']
    tail += [f"<script>{script}</script>" for script in scripts]
    html = read_asset("index.html").replace("<!-- HEAD -->", "\n".join(head))
    before, end = html.rsplit("</body>", 1)
    return f"{before}{chr(10).join(tail)}\n</body>{end}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
