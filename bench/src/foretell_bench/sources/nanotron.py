"""How nanotron lays a model out and what it holds in memory, by the rules of `trainers/nanotron.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.hardware import Device
from foretell.plan import Plan
from foretell.units import Bytes
from foretell_bench.sources.layers import Stage
from foretell_bench.sources.trainers import trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama:
    layers: int
    width: int
    mlp: int
    heads: int
    vocabulary: int
    tied: bool

    @property
    def of_layer(self) -> int:
        return 4 * self.width**2 + 3 * self.width * self.mlp

    @property
    def of_words(self) -> int:
        return self.vocabulary * self.width


def stages(model: Llama, pipeline: int) -> list[Stage] | None:
    """What each stage holds; None where more than one is left without parameters, which does not run.

    Blocks are laid out in order, and go to the next stage once the parameters so far exceed its part of the whole.
    """
    costs = [0, *[model.of_layer] * model.layers, 0, model.of_words, 0, 0]  # embedding, layers, norm, head, cast, loss
    head = model.layers + 2
    held: list[list[int]] = [[] for _ in range(pipeline)]
    at, so_far = 0, 0
    for block, cost in enumerate(costs):
        so_far += cost
        if at < pipeline - 1 and so_far > sum(costs) * (at + 1) / pipeline:
            at += 1
        held[at].append(block)
    if sum(all(block > head for block in blocks) for blocks in held) > 1:
        return None
    return [
        Stage(sum(0 < b <= model.layers for b in blocks), embedding=0 in blocks, head=head in blocks) for blocks in held
    ]


def parameters(model: Llama, stage: Stage, plan: Plan) -> float:
    """On one rank; tied words are held once where embedding and head meet."""
    words = max(stage.embedding, stage.head) if model.tied else stage.embedding + stage.head
    return (stage.layers * model.of_layer + words * model.of_words) / plan.tp


def memory(model: Llama, layout: list[Stage], plan: Plan, micro_batch: int, tokens: int) -> list[Bytes]:
    """Peak of a rank of each stage."""
    return [round(_held(model, layout, number, plan, micro_batch * tokens)) for number in range(len(layout))]


def _held(model: Llama, layout: list[Stage], number: int, plan: Plan, tokens: int) -> float:
    rules, stage = trainer("nanotron"), layout[number]
    states, each = rules["parameter"], rules["activation"]
    accumulates = (plan.grad_accumulation or 1) > 1
    in_flight = min(len(layout) - number, plan.grad_accumulation or 1)
    a_parameter = (
        states["held"] + (plan.dp > 1) * states["replicated"] + states["split"] / (plan.dp if plan.zero else 1)
    )
    wide = tokens * model.width
    total = parameters(model, stage, plan) * a_parameter + rules["device"]["beside"]
    layers = stage.layers + (len(layout) > 1) * each["edge"]
    total += each["layer"] * wide * layers * in_flight / plan.tp
    total += each["handed"] * wide * (in_flight - 1) * (plan.tp > 1)
    if stage.head:
        logit = each["logit"] + accumulates * each["logit_accumulated"]
        total += tokens * model.vocabulary * (logit / plan.tp + each["logit_whole"])
    return total


def fits(needed: list[Bytes], device: Device) -> bool:
    return max(needed) <= trainer("nanotron")["device"]["usable"] * device.usable_bytes
