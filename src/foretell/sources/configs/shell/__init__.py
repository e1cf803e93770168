"""Launch scripts, read as a shell would read them and run by nobody: what they start, with which arguments."""

from __future__ import annotations

from foretell.sources.configs.shell.launch import Arguments, Started, arguments, programs_of

__all__ = ["Arguments", "Started", "arguments", "programs_of"]
