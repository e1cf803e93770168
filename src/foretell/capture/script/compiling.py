"""torch.compile in a script: what it compiles is compiled, as far as the plan that it wraps its model in can have it so."""

from __future__ import annotations

from typing import Any

from torch._compile import _disable_dynamo as disable_dynamo
from torch.optim.optimizer import Optimizer

from foretell.capture.as_gpu.patches import replace, replaced
from foretell.capture.compiled import COMPILES, wishes
from foretell.capture.script.findings import DeepSpeed, Sharded
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    """Before all stand-ins that replace something in torch: a compiler reads torch as it is."""
    wishes.take_over()
    if (why := session.guesses.known.get(COMPILES)) is not None:  # an earlier run tried
        wishes.give_up(why)
    else:
        wishes.compile_with(wishes.Compiler(session.recorder, lambda: _why_not(session), replaced(), session.report))
    around = Optimizer.profile_hook_step

    def profile_hook_step(step: Any) -> Any:
        """Updates are recorded one by one, also inside what is compiled."""
        return disable_dynamo(around(step))

    replace(Optimizer, "profile_hook_step", staticmethod(profile_hook_step))


def _why_not(session: Session) -> str | None:
    found = session.findings
    if isinstance(found.wrapper, Sharded) or (
        isinstance(found.wrapper, DeepSpeed) and found.wrapper.settings.get("zero") == 3
    ):
        return "kernels of sharded parameters are not compiled here"
    if found.degrees:
        return f"kernels of a step that {', '.join(found.degrees)} cut are not compiled here"
    if found.fp8 is not None:
        return "products in 8 bits are not compiled here"
    return None
