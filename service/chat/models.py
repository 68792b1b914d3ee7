"""The names that requests may use: the model's own, and those of its LoRA adapters, which come and go."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.engine.lora import NAME, NAME_RULE, Adapter, folder_fault, weights_fault
from service.engine.protocol import Engine
from service.errors import InvalidValue, ModelNotFound, ServiceError, StartError, Unsupported, shown

MOST_NAMED = 16  # in a message
OWNER = "twophase"

log = logging.getLogger(__name__)


class Models:
    """A name that is unloaded, or given to another adapter, leads to the old one no more.

    The engine keeps that until the last answer that is made with it has ended.
    """

    def __init__(
        self, engine: Engine, base: str, named: Mapping[str, Path], folder: Path | None = None
    ) -> None:
        """`named` adapters are there from the start; those that come later lie in `folder`.

        Raises:
            StartError: an adapter's name cannot be used, or its folder holds none.
        """
        self.base = base
        self._engine = engine
        self._named = {name: path.expanduser().absolute() for name, path in named.items()}
        self._folder = None if folder is None else folder.expanduser().resolve()
        self._since = int(time.time())
        self._adapters: dict[str, Adapter] = {}
        self._created: dict[int, int] = {}  # when each adapter in the engine was loaded, by its number
        self._users: Counter[int] = Counter()
        self._numbers = itertools.count(1)
        self._versions: Counter[str] = Counter()
        self._changing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self._check_settings()

    async def start(self) -> None:
        """Load the adapters of the settings into an engine that runs.

        Raises:
            StartError: the engine cannot use one.
        """
        for name, folder in self._named.items():
            try:
                self._adapters[name] = await self._loaded(name, folder)
            except ServiceError as exc:
                raise StartError(
                    f"TWOPHASE_LORA: {name} cannot be loaded from {folder}: {exc.message}"
                ) from exc

    def find(self, name: str | None, *, param: str | None = "model") -> Adapter | None:
        """The adapter of this name; None for the model itself, which is also what no name stands for.

        Raises:
            ModelNotFound.
        """
        if name is None or name == self.base:
            return None
        if name in self._adapters:
            return self._adapters[name]
        here = ", ".join([self.base, *self._adapters][:MOST_NAMED])
        raise ModelNotFound(f"There is no model {shown(name)} here; this service has {here}.", param=param)

    def use(self, adapter: Adapter) -> Callable[[], None]:
        """Keep an adapter in the engine until what this returns is called, once."""
        self._users[adapter.number] += 1

        def leave() -> None:
            self._users[adapter.number] -= 1
            self._let_go(adapter)

        return leave

    def cards(self) -> list[dict[str, Any]]:
        """The entries of `/v1/models`, the model itself first."""
        return [self.card(name) for name in (self.base, *self._adapters)]

    def card(self, name: str) -> dict[str, Any]:
        """One entry of `/v1/models`.

        Raises:
            ModelNotFound.
        """
        adapter = self.find(name, param=None)
        return {
            "id": name,
            "object": "model",
            "created": self._since if adapter is None else self._created[adapter.number],
            "owned_by": OWNER,
            "parent": None if adapter is None else self.base,
            "max_model_len": self._engine.facts.context_window,
        }

    async def load(self, name: str, path: str, *, replace: bool = False) -> None:
        """Load an adapter that lies in the operator's folder, for requests that come from now on.

        Raises:
            InvalidValue: it cannot be loaded, or has a name that is taken and is not to `replace` it.
        """
        folder = self._allowed()
        if not NAME.fullmatch(name):
            raise InvalidValue(f"A name {NAME_RULE}.", param="lora_name")
        inside = await asyncio.to_thread(_inside, folder, path)
        async with self._changing:
            if name == self.base or (name in self._adapters and not replace):
                raise InvalidValue(
                    f"{name} is served already; choose another name"
                    + ("." if name == self.base else ", or set load_inplace to replace it."),
                    param="lora_name",
                )
            before = self._adapters.get(name)
            self._adapters[name] = await self._loaded(name, inside)
            log.info("adapter %s was loaded from %s", name, inside)
            if before is not None:
                self._let_go(before)

    async def unload(self, name: str) -> None:
        """Take no more requests for an adapter.

        Raises:
            ModelNotFound: there is none of that name. Unsupported: nothing is changed at run time here.
        """
        self._allowed()
        async with self._changing:
            adapter = self.find(name, param="lora_name")
            if adapter is None:
                raise InvalidValue(f"{name} is the model itself, not an adapter.", param="lora_name")
            del self._adapters[name]
            log.info("adapter %s was unloaded", name)
            self._let_go(adapter)

    def _allowed(self) -> Path:
        """The folder of adapters that may be named at run time."""
        if self._folder is None:
            raise Unsupported(
                "LoRA adapters are not loaded or unloaded at run time here; the operator allows it by "
                "setting TWOPHASE_LORA_FOLDER, the folder they lie in."
            )
        return self._folder

    async def _loaded(self, name: str, folder: Path) -> Adapter:
        width = self._engine.facts.model_config.get("hidden_size")
        if fault := await asyncio.to_thread(lambda: folder_fault(folder) or weights_fault(folder, width)):
            raise InvalidValue(f"This is no LoRA adapter for this model: {fault}.", param="lora_path")
        most = self._engine.facts.max_adapters
        if len(self._created) >= most:
            raise InvalidValue(
                f"The engine has all the adapters it has places for ({most}); unload one, or have the "
                "operator raise max_loras in TWOPHASE_ENGINE_ARGS.",
                param="lora_name",
            )
        adapter = Adapter(name, next(self._numbers), folder, self._versions[name] + 1)
        await self._engine.load_adapter(adapter)
        self._versions[name] += 1
        self._created[adapter.number] = int(time.time())
        return adapter

    def _let_go(self, adapter: Adapter) -> None:
        """Once no name leads to an adapter and no answer is made with it, the engine may forget it."""
        if self._users[adapter.number] > 0 or self._adapters.get(adapter.name) is adapter:
            return
        del self._users[adapter.number]
        task = asyncio.ensure_future(self._forget(adapter))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _forget(self, adapter: Adapter) -> None:
        try:
            await self._engine.unload_adapter(adapter)
        except ServiceError as exc:
            log.warning("the engine could not forget adapter %s: %s", adapter.identity, exc.message)
        finally:
            self._created.pop(adapter.number, None)

    def _check_settings(self) -> None:
        for name, folder in self._named.items():
            if name == self.base:
                raise StartError(f"TWOPHASE_LORA: {shown(name)} is the model's own name")
            if not NAME.fullmatch(name):
                raise StartError(f"TWOPHASE_LORA: {shown(name)} cannot be a name; one {NAME_RULE}")
            if fault := folder_fault(folder):
                raise StartError(f"TWOPHASE_LORA: {name}: {folder} holds no LoRA adapter: {fault}")
        if self._folder is not None and not self._folder.is_dir():
            raise StartError(f"TWOPHASE_LORA_FOLDER={self._folder}: there is no such folder")


def _inside(folder: Path, path: str) -> Path:
    """The folder that a caller's path names in the operator's `folder`, links followed.

    Raises:
        InvalidValue: it lies outside, or there is none.
    """
    try:
        found = (folder / path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # not there, a loop of links, a NUL
        found = folder
    if found == folder or not found.is_relative_to(folder) or not found.is_dir():
        raise InvalidValue(
            f"{shown(path)} is no folder inside the one that adapters are loaded from here.",
            param="lora_path",
        )
    return found
