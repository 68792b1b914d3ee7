"""The command line: serve, probe, model and key."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from service import __version__
from service.admission.keys import new_key
from service.engine.embedded import ModelUnavailable, prepare
from service.engine.model import model_to_load
from service.errors import StartError
from service.probe.command import add_probe
from service.probe.trouble import ProbeError
from service.settings import Settings, load
from service.telemetry.log import log_to_stderr
from service.web.listen import listening_socket
from service.web.tls import certificate_of


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `twophase` command; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        options.run(options)
        return 0
    except (StartError, ModelUnavailable, ProbeError) as exc:
        print(f"twophase: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _configured(
    command: Callable[[Settings, argparse.Namespace], None],
) -> Callable[[argparse.Namespace], None]:
    """A command of the service itself, which is given its settings; the command line's win."""

    def run(options: argparse.Namespace) -> None:
        overrides = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
        settings = load(**overrides)
        log_to_stderr(settings.log_format, settings.log_level)
        command(settings, options)

    return run


def serve(settings: Settings, options: argparse.Namespace) -> None:
    """Load everything and serve until a signal comes.

    Raises:
        ModelUnavailable, StartError: with a sentence that says what to do.
    """
    settings.check_reach()
    address = listening_socket(settings.host, settings.port)
    if certificate := certificate_of(settings):
        certificate.check()
    model = model_to_load(settings, _say)
    _say(f"loading {settings.model_name}")
    from service.app import run  # after the first line: importing vLLM alone takes ten seconds

    run(settings, model, address, _say)


def model(settings: Settings, options: argparse.Namespace) -> None:
    """Prepare the embedded model; say where it is and how big."""
    prepared = prepare(settings.cache, _say, verify=options.verify)
    print(f"{prepared.path}  {prepared.size_bytes / 1e6:.0f} MB")


def key(settings: Settings, options: argparse.Namespace) -> None:
    """Make an API key for a tenant: the key, shown once, to the terminal; its table to the standard output.

    Raises:
        StartError: no tenant can have that name.
    """
    try:
        made = new_key(options.name)
    except ValueError as exc:
        raise StartError(str(exc)) from None
    _say(f"the key of {options.name}, shown this once: {made.key}")
    print(made.table, end="")


def _say(line: str) -> None:
    print(f"twophase: {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twophase",
        description="Serves chat from a language model and shows where the time of every answer goes.",
        epilog="Settings are TWOPHASE_… variables, or lines in the TOML file that TWOPHASE_CONFIG names.",
    )
    parser.add_argument("--version", action="version", version=f"twophase {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", help="serve the model until Ctrl-C", description=serve.__doc__)
    serving.add_argument("--host", help="address to listen on (127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (8000; 0 takes a free one)")
    serving.add_argument("--model", help="Hugging Face id or folder (the embedded model)")
    serving.set_defaults(run=_configured(serve))

    add_probe(commands)

    preparing = commands.add_parser("model", help="prepare the embedded model", description=model.__doc__)
    preparing.add_argument("--verify", action="store_true", help="compare every byte, not only the sizes")
    preparing.set_defaults(run=_configured(model))

    making = commands.add_parser("key", help="make an API key for a tenant", description=key.__doc__)
    making.add_argument("name", help="the tenant's name")
    making.set_defaults(run=_configured(key))
    return parser


if __name__ == "__main__":
    sys.exit(main())
