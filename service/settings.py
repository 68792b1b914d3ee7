"""All settings, from `TWOPHASE_…` variables and one TOML file; a name nobody knows is an error."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from service.errors import StartError

PREFIX = "TWOPHASE_"
UNSHOWN = frozenset({"cache_secret", "quota_store", "engine_args"})  # hold secrets, or may
ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")  # as browsers send it
EMBEDDED_MODEL = "smollm2-135m-instruct"
RUN_TIME_ADAPTERS = 4  # LoRA adapters that there is room for beside those of the settings


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _network(value: str) -> str:
    ipaddress.ip_network(value)
    return value


def _origin(value: str) -> str:
    if value != "*" and not ORIGIN.fullmatch(value):
        raise ValueError(f"{value!r} is no origin; write it like https://chat.example.org, without a path")
    return value


Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], NoDecode, BeforeValidator(_split)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], NoDecode, BeforeValidator(_split)]


class SettingsError(StartError):
    """The settings cannot be used; the message names the setting and what to change."""


class Settings(BaseSettings):
    """What an operator may decide. Field descriptions are the help text and README's table."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    config: Path | None = Field(None, description="TOML file with any of these settings, names in lower case")
    model: str | None = Field(
        None, description="Hugging Face id or folder; without it the embedded SmolLM2-135M-Instruct"
    )
    served_model_name: str | None = Field(
        None, description="Name of the model in requests; by default the last part of its path"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Which build `make` installs; `auto` looks for a GPU"
    )
    cache: Path = Field(Path("~/.cache/twophase"), description="Folder for the embedded model")
    max_model_len: int | None = Field(
        None, ge=2, description="Context window W in tokens; by default the model's own"
    )
    default_output_tokens: int | None = Field(
        None, ge=1, description="Output limit for requests that name none; by default what is left of W"
    )
    max_input_tokens: int | None = Field(None, ge=1, description="Longest prompt accepted, in tokens")
    max_output_tokens: int | None = Field(None, ge=1, description="Longest answer made, in tokens")
    input_policy: Literal["reject", "truncate"] = Field(
        "reject", description="What happens to a prompt over its limit: refused, or oldest turns left out"
    )
    output_policy: Literal["reject", "clamp"] = Field(
        "clamp", description="What happens to a wish for output over its limit: refused, or cut to it"
    )
    chat_template: Path | None = Field(None, description="Jinja file used in place of the model's template")
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments every rendering gives the template, as JSON or TOML"
    )
    reasoning_parser: str | None = Field(
        None, description="vLLM's parser for what the model thinks before it answers; by default none"
    )
    tool_parser: str | None = Field(
        None,
        description="vLLM's parser for the model's tool calls; by default told by its template, where clear",
    )
    control_tokens: Literal["text", "reject"] = Field(
        "text", description="Control tokens that users type: plain characters, or a 400"
    )
    piece_cache_bytes: int = Field(
        64 * 2**20, ge=2**20, description="Memory for pieces of prompts that are already tokenized, in bytes"
    )
    prompt_memory_bytes: int = Field(
        32 * 2**20, ge=0, description="Memory for what was sent before, as token ids, to tell what is cached"
    )
    response_store_bytes: int = Field(
        16 * 2**20, ge=0, description="Memory for the responses each tenant wants stored, in bytes"
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Any vLLM engine arguments, as JSON or a TOML table"
    )
    lora: dict[str, Path] = Field(
        default_factory=dict,
        description="LoRA adapters served from the start, names to folders, as JSON or a TOML table",
    )
    lora_folder: Path | None = Field(
        None, description="Folder of LoRA adapters that tenants with the right `lora_admin` may load"
    )
    tenants_file: Path | None = Field(
        None, description="TOML file of tenants, their keys and limits; read again on SIGHUP"
    )
    cache_secret: SecretStr | None = Field(
        None, description="Secret that keeps tenants' prefix caches apart; by default a new one at each start"
    )
    public_metrics: bool = Field(False, description="Show `/metrics` without a key")
    trace_content: bool = Field(
        False, description="Put what is asked and answered into spans, for all who may read traces"
    )
    quota_store: SecretStr = Field(
        SecretStr("memory://"), description="Redis URL where replicas count tenants' minutes together"
    )
    max_running: int | None = Field(
        None, ge=1, description="Answers in the engine at once; by default as many as it takes"
    )
    max_waiting: int | None = Field(
        None,
        ge=0,
        description="Requests that may wait for a slot; by default 4 times as many as can run, at least 64",
    )
    max_wait_s: float = Field(30, gt=0, description="Longest wait for a slot")
    deadline_mode: Literal["enforce", "shadow"] = Field(
        "enforce", description="Whether predictions refuse requests or are only counted"
    )
    allow_anonymous: bool = Field(False, description="Serve other machines without API keys")
    tls_cert_file: Path | None = Field(
        None, description="Certificate chain (PEM): serve https in place of http; read again on SIGHUP"
    )
    tls_key_file: Path | None = Field(
        None, description="Key of the certificate (PEM), where it is not in the same file"
    )
    trusted_proxies: Networks = Field(
        (), description="Addresses or networks, by comma, whose X-Forwarded-For and -Proto are believed"
    )
    cors_origins: Origins = Field(
        (), description="Origins, by comma, whose pages may call this service from a browser; `*` for any"
    )
    strict: bool = Field(False, description="Refuse request fields nobody knows, in place of ignoring them")
    max_n: int = Field(8, ge=1, le=128, description="Largest `n` (answers per request)")
    max_body_bytes: int = Field(4 * 2**20, ge=1024, description="Largest request body, in bytes")
    body_timeout_s: float = Field(30, gt=0, description="Time a client has to send its whole body")
    keepalive_s: float = Field(15, gt=0, description="Pause after which a silent stream gets a comment line")
    write_timeout_s: float = Field(60, gt=0, description="Time a client may leave its stream unread")
    drain_s: float = Field(30, ge=0, description="Time running answers get to finish at shutdown")
    hang_s: float = Field(60, gt=0, description="Silence of the engine after which it counts as hung")
    slo_ttft_ms: int = Field(2000, ge=1, description="Promised time to first token, in milliseconds")
    log_format: Literal["console", "json"] = Field("console", description="Log for people or for machines")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe log")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line before environment before file."""
        path = os.environ.get(PREFIX + "CONFIG")
        file = TomlConfigSettingsSource(settings_cls, toml_file=path) if path else None
        return (init_settings, env_settings, *([file] if file else []))

    @model_validator(mode="after")
    def _key_with_certificate(self) -> Self:
        if self.tls_key_file and not self.tls_cert_file:
            raise ValueError(
                f"{PREFIX}TLS_KEY_FILE needs {PREFIX}TLS_CERT_FILE, the certificate it belongs to"
            )
        return self

    def check_reach(self) -> None:
        """Before listening. Other commands, such as the one that makes the first key, do without.

        Raises:
            SettingsError: other machines could use the service although nobody has meant them to.
        """
        if not (self.allow_anonymous or self.tenants_file or _is_loopback(self.host)):
            raise SettingsError(
                f"host {self.host} can be reached from other machines and there are no API keys; "
                f"name keys in {PREFIX}TENANTS_FILE, or set {PREFIX}ALLOW_ANONYMOUS=1 if everybody there may "
                "use this service"
            )

    @property
    def adapter_places(self) -> int:
        """How many LoRA adapters the engine is to have room for."""
        return len(self.lora) + (RUN_TIME_ADAPTERS if self.lora_folder is not None else 0)

    @property
    def model_name(self) -> str:
        """The name that requests use."""
        if self.served_model_name:
            return self.served_model_name
        return self.model.rstrip("/").rsplit("/", 1)[-1] if self.model else EMBEDDED_MODEL


def load(**overrides: Any) -> Settings:
    """Read and check all settings. `overrides` (from the command line) win.

    Raises:
        SettingsError: with one line for each thing to change.
    """
    _refuse_unknown(os.environ)
    file = os.environ.get(PREFIX + "CONFIG")
    if file and not Path(file).is_file():
        raise SettingsError(f"{PREFIX}CONFIG={file}: there is no such file")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as exc:
        raise SettingsError("\n".join(_sentence(error) for error in exc.errors())) from None
    except (OSError, ValueError) as exc:
        raise SettingsError(f"the settings cannot be read: {exc}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name most like this one, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _refuse_unknown(environ: Iterable[str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = [name for name in environ if name.upper().startswith(PREFIX) and name.upper() not in known]
    if unknown:
        raise SettingsError(
            "\n".join(f"{name} is no setting{nearest(name.upper(), known)}" for name in unknown)
        )


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{where} is no setting{nearest(where, Settings.model_fields)}"
    if not where:
        return str(error["msg"].removeprefix("Value error, "))
    got = "" if error["loc"][0] in UNSHOWN else f", got {error['input']!r}"
    return f"{PREFIX}{where.upper()}: {error['msg']}{got}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
