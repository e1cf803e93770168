"""What every verb shares: options, how errors end, how things are printed and progress is told."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

from foretell.errors import ForetellError, InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

P = ParamSpec("P")
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_READER_GONE = 141  # 128 + SIGPIPE

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="file.py:function, package.module:function, timm/NAME, torchvision/NAME, hf/NAME, a config.json or a "
        ".graph file. Python sources are your own code and are executed.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of SOURCE, like batch=256.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Capture again, even if this was captured before.")]


def guarded(function: Callable[P, None]) -> Callable[P, None]:
    """A verb whose errors become a paragraph and an exit code."""

    @functools.wraps(function)
    def verb(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except ForetellError as error:
            _fail(str(error), error.exit_code, error)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has gone; Python must not complain about it a second time when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(_READER_GONE) from None
        except Exception as error:
            _fail(_bug_text(error), 1, error)

    return verb


def read_settings(written: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for item in written:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {item!r} is not a setting. Write it like --set batch=256.")
        if name.strip() in settings:
            raise InputError(f"--set {name.strip()} is given twice. Give it once.")
        settings[name.strip()] = value.strip()
    return settings


def print_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_drawn(what: RenderableType, console: Console) -> None:
    """Draw first, then write: a reader that goes away then meets one plain write."""
    with console.capture() as drawn:
        console.print(what)
    sys.stdout.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))


def console_of(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    console_of(stderr=True).print(text, style="dim", soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that says what is going on, on standard error and only to a person."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.text import Text

    with console_of(stderr=True).status(Text("Starting")) as status:
        yield lambda text: status.update(Text(text))


def _fail(text: str, code: int, error: Exception) -> NoReturn:
    from rich.text import Text

    console = console_of(stderr=True)
    if os.environ.get("FORETELL_DEBUG", "0") not in ("", "0"):
        import traceback

        sys.stderr.write("".join(traceback.format_exception(error)))
    # A file or pipe gets the paragraph in one line, which is easier to search.
    console.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=not console.is_terminal)
    raise SystemExit(code)


def _bug_text(error: Exception) -> str:
    return (
        f"this is a bug in Foretell ({type(error).__name__}: {error}). Run it again with foretell --debug … to see "
        "where, and please report it with the command you ran."
    )
