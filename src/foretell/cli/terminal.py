"""What every verb shares: how its help is laid out, how its errors end, how it prints and reports progress."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec

from typer.core import TyperCommand

from foretell.errors import ForetellError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

P = ParamSpec("P")
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_READER_GONE = 141  # 128 + SIGPIPE
_RENAMED: Final = {"--samples": "--job-samples", "--tokens": "--job-tokens"}  # old names still work, with a notice


class Verb(TyperCommand):
    """A command whose help groups its options by their panel, as plain text: rich would take as long again to load."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        panels["Options"] = panels.pop("Options", [])  # what has no panel comes last
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        for place, argument in enumerate(args):
            name, *value = argument.split("=", 1)
            if name not in known and _RENAMED.get(name) in known:
                note(f"{name} is now called {_RENAMED[name]}; the old name still works.")
                args[place] = "=".join([_RENAMED[name], *value])
        return super().parse_args(ctx, args)


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
    """A function that reports what is going on, on standard error and only to a person."""
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
