"""What README's chapter on clients has people run, to be run as it stands but for address and key."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"
CHAPTER = re.compile(r"^## Clients\n(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def lines(language: str, telling: str, url: str, key: str) -> str:
    """The one block of the chapter in which `telling` stands."""
    chapter = CHAPTER.search(README.read_text())
    assert chapter is not None
    (found,) = [block for kind, block in BLOCK.findall(chapter[1]) if kind == language and telling in block]
    found = found.replace("http://localhost:8000", url).replace('api_key="none"', f'api_key="{key}"')
    return str(found.replace("kind=openai_http,", f"kind=openai_http,api_key={key},").rstrip())
