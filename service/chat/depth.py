"""How deep JSON of a caller's may be nested, as a body or in a string of one."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
CONTAINERS = (dict, list)  # a tuple, which is asked in half the time of their union


def too_deep(value: Any) -> bool:
    """Whether a value has more levels than that. Level by level, so that no depth is too much for it."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for children in inner for child in children if isinstance(child, CONTAINERS)]
        if not level:
            return False
    return True
