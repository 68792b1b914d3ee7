"""Which model is loaded: the folder or Hugging Face id that the settings name, or else the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.engine.embedded import prepare
from service.errors import StartError
from service.settings import Settings


def model_to_load(settings: Settings, say: Callable[[str], None]) -> str:
    """The folder or Hugging Face id; the embedded model is made first where it is not there yet.

    Raises:
        ModelUnavailable, StartError: with a sentence that says what to do.
    """
    if settings.model is None:
        return str(prepare(settings.cache, say).path)
    folder = Path(settings.model).expanduser()
    looks_local = settings.model.startswith(("/", ".", "~")) or folder.exists()
    if looks_local and not (folder / "config.json").is_file():
        raise StartError(
            f"TWOPHASE_MODEL={settings.model} holds no model: there is no {folder / 'config.json'}. "
            "Name a folder in the Hugging Face layout, or a Hugging Face id such as Qwen/Qwen3-0.6B."
        )
    return str(folder) if looks_local else settings.model
