"""Stages taking turns: how long a pipelined step is, when every stage knows how long its passes take.

Host and device of a stage add up as maxima of sums, so a pass is summed up exactly by three numbers: its length on a
device that never waits for the host, its length behind a host that starts with it, and what it takes the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from foretell.program import Action, Program
from foretell.simulate.joined import Stream, pieces_of, side_by_side
from foretell.simulate.rank import Rank
from foretell.simulate.segment_sums import Durations
from foretell.simulate.timeline import WHOLE_PASS, LazySpans, Span, Timeline
from foretell.units import Seconds

_LONG_AGO: Seconds = -1e4


class _Pass(NamedTuple):
    device: Seconds  # from its begin, with the host ahead
    behind_host: Seconds  # from the host's begin, with the device idle
    host: Seconds
    network: Seconds  # until what it sends to replicas has arrived
    computing: Seconds  # kernels running
    communicating: Seconds  # a lane of the network busy


@dataclass(slots=True)
class _Stage:
    host: Seconds = 0.0
    device: Seconds = 0.0
    network: Seconds = 0.0
    busy: Seconds = 0.0
    computing: Seconds = 0.0
    communicating: Seconds = 0.0
    last: int = -1  # span that ended last on the device
    next: int = 0


def simulate_pipeline(
    program: Program,
    durations: Sequence[Durations],
    hand_over: Sequence[Seconds],
    detailed: int | None = None,
    *,
    draw: bool = True,
) -> Timeline:
    """One step of all stages; `hand_over` is what it takes from a chunk to the next, and back.

    The first micro-batch of the stage `detailed` is drawn op by op, all else pass by pass; undrawn, there are no spans.
    """
    pipeline = program.pipeline
    if pipeline is None:
        raise ValueError("a program without a pipeline has one role: use simulate")
    run = _Run(program, pipeline.actions, durations, hand_over, draws=draw)
    timeline = run.timeline(detailed)
    if pipeline.shorter is None:
        return timeline
    before = _Run(program, pipeline.shorter, durations, hand_over, run, draws=False)
    return _with_rounds(timeline, before.timeline(None), run, before, pipeline.rounds_left_out)


def _with_rounds(timeline: Timeline, shorter: Timeline, run: _Run, before: _Run, times: int) -> Timeline:
    """A step with so many rounds of micro-batches more, each of which takes what the last one added; a host that falls
    behind by a little in each of them sets the pace in the end."""

    def later(long: Seconds, short: Seconds) -> Seconds:
        return long + (long - short) * times

    hosts = [later(a.host, b.host) for a, b in zip(run.stages, before.stages, strict=True)]
    makespan = max(later(timeline.makespan, shorter.makespan), *hosts)
    busy = [later(a.busy, b.busy) for a, b in zip(run.stages, before.stages, strict=True)]
    return replace(
        timeline,
        makespan=makespan,
        period=makespan,
        waiting=max(makespan - max(*busy, *hosts), 0.0),
        computing=later(timeline.computing, shorter.computing),
        communicating=min(later(timeline.communicating, shorter.communicating), makespan),
    )


def _together(actions: Sequence[Action], first: int) -> Sequence[Action]:
    """An action, and those that are joined to it."""
    end = first + 1
    while end < len(actions) and actions[end].joined:
        end += 1
    return actions[first:end]


class _Run:
    def __init__(
        self,
        program: Program,
        actions: Sequence[Sequence[Action]],
        durations: Sequence[Durations],
        hand_over: Sequence[Seconds],
        before: _Run | None = None,
        *,
        draws: bool,
    ) -> None:
        assert program.pipeline is not None
        self.program, self.pipeline, self.actions = program, program.pipeline, actions
        self.durations, self.hand_over, self.draws = durations, hand_over, draws
        self.detailed: int | None = None
        self.last_batch = max((a.micro_batch for own in actions for a in own), default=0)
        self.stages = [_Stage() for _ in program.roles]
        self.done: dict[tuple[str, int, int], tuple[Seconds, int]] = {}
        self.spans: list[Span] = []
        self.passes: dict[tuple[int, int, int, bool], _Pass] = {} if before is None else before.passes
        self.lengths: dict[Hashable, Seconds] = {} if before is None else before.lengths  # of what runs side by side
        # By stage: the ops at which collectives of its last micro-step begin.
        self._once = [
            {c.starts_after if c.issued_by is None else c.issued_by for c in role.collectives if not c.every_micro_step}
            for role in program.roles
        ]

    def timeline(self, detailed: int | None) -> Timeline:
        self.detailed = detailed
        waiting = set(range(len(self.stages)))
        while waiting:
            ran = [stage for stage in sorted(waiting) if self._advance(stage)]
            if not ran:
                raise ValueError("the stages wait for each other: the actions of the schedule do not fit together")
            waiting = {s for s in waiting if self.stages[s].next < len(self.actions[s])}
        for number, stage in enumerate(self.stages):
            self._update(number, stage)
        makespan = max(max(s.device, s.host, s.network) for s in self.stages)
        busiest = max(max(s.busy, s.host) for s in self.stages)  # a host that cannot keep up is no bubble
        return Timeline(
            spans=tuple(self.spans),
            makespan=makespan,
            period=makespan,
            waiting=max(makespan - busiest, 0.0),
            computing=max(s.computing for s in self.stages),
            communicating=min(max(s.communicating for s in self.stages), makespan),
        )

    def _advance(self, number: int) -> bool:
        """Run what a stage can run now."""
        stage, actions = self.stages[number], self.actions[number]
        began = stage.next
        while stage.next < len(actions):
            together = _together(actions, stage.next)
            needing = [a for a in together if not (a.joined and a.phase == "weights")]
            arrivals = [self._arrival(a) for a in needing]
            if None in arrivals:
                break
            received = (
                self._received(number, a, at) for a, at in zip(needing, arrivals, strict=True) if at is not None
            )
            self._run(number, stage, together, *max(received))
            stage.next += len(together)
        return stage.next > began

    def _arrival(self, action: Action) -> tuple[Seconds, int] | None:
        """When an action has what it needs from other stages, and from which span; None: not yet."""
        chunk, batch = action.chunk, action.micro_batch
        if action.phase == "forward":
            return (0.0, -1) if self.pipeline.is_first(chunk) else self._handed("forward", chunk - 1, chunk - 1, batch)
        if action.phase == "weights":
            return self.done.get(("backward", chunk, batch))
        if self.pipeline.is_last(chunk):
            return self.done.get(("forward", chunk, batch))
        return self._handed("backward", chunk + 1, chunk, batch)

    def _handed(self, phase: str, giver: int, boundary: int, batch: int) -> tuple[Seconds, int] | None:
        done = self.done.get((phase, giver, batch))
        return None if done is None else (done[0] + self.hand_over[boundary], done[1])

    def _received(self, number: int, action: Action, arrival: tuple[Seconds, int]) -> tuple[Seconds, int]:
        """An arrival whose sending and receiving are drawn, where another stage hands over what a pass needs."""
        chunk, backward = action.chunk, action.phase == "backward"
        giver, boundary = (chunk + 1, chunk) if backward else (chunk - 1, chunk - 1)
        stage_of = self.pipeline.stage_of
        within = action.phase != "weights" and 0 <= giver < len(stage_of)
        if not self.draws or not within or stage_of[giver] == number or not self.hand_over[boundary]:
            return arrival
        name = f"{action.phase} of micro-batch {action.micro_batch}, chunk {giver} to {chunk}"
        (end, after), length = arrival, self.hand_over[boundary]
        nbytes = self.pipeline.hand_over[boundary].nbytes if self.pipeline.hand_over else 0
        roles = [self.program.roles[stage].name for stage in (stage_of[giver], number)]
        for role, peer, kind in ((*roles, "send"), (*roles[::-1], "receive")):
            phase = "backward" if backward else "forward"
            drawn = Span(
                role, "network pp", name, "", phase, end - length, length, WHOLE_PASS, after, kind, nbytes, peer
            )
            self.spans.append(drawn)
            after = len(self.spans) - 1
        return end, after

    def _run(self, number: int, stage: _Stage, together: Sequence[Action], arrival: Seconds, sender: int) -> None:
        p = self._passes(number, together)
        begin = max(stage.device, arrival)
        end = max(begin + p.device, stage.host + p.behind_host)
        first = together[0]
        if first.phase == "forward" and first.micro_batch == 0:
            # What a step needs once is gathered from its begin on, by all stages.
            gathering = self._pass(number, first.phase, first.chunk, True)
            end = max(end, gathering.device)
            stage.network = max(stage.network, gathering.network)
            stage.communicating += gathering.communicating - self._of(number, first).communicating
        after = sender if arrival > stage.device else stage.last
        ops = self.pipeline.ranges[number].get((first.phase, first.chunk))  # none where a stage has nothing to run
        if ops is not None and number == self.detailed and first.micro_batch == 0 and len(together) == 1:
            self._draw_ops(number, stage, ops, (begin, after))
        elif self.draws:
            self._draw_passes(number, together, (end - p.device, p.device), after)
        stage.network = max(stage.network, end - p.device + p.network)
        stage.host += p.host
        stage.busy += p.device
        stage.computing += p.computing
        stage.communicating += p.communicating + sum(map(self._handing_over, together))
        stage.device, stage.last = end, len(self.spans) - 1
        for action in together:
            self.done[action.phase, action.chunk, action.micro_batch] = (end, stage.last)

    def _draw_passes(self, number: int, together: Sequence[Action], when: tuple[Seconds, Seconds], after: int) -> None:
        """Passes one after another, those that run side by side with their share of the time."""
        alone = [self._of(number, action).device for action in together]
        (begin, length), whole = when, sum(alone) or 1.0
        for action, own in zip(together, alone, strict=True):
            share = length * own / whole if len(together) > 1 else length
            phase = "forward" if action.phase == "forward" else "backward"
            name = f"{action.phase} of micro-batch {action.micro_batch}, chunk {action.chunk}"
            self._draw(number, "device", name, phase, begin, share, after)
            begin, after = begin + share, len(self.spans) - 1

    def _handing_over(self, action: Action) -> Seconds:
        """What a stage's own sends and receives of a pass take."""
        if action.phase == "weights":
            return 0.0
        around = (action.chunk - 1, action.chunk)
        return sum(self.hand_over[boundary] for boundary in around if 0 <= boundary < len(self.hand_over))

    def _draw(
        self, number: int, stream: str, name: str, phase: str, begin: Seconds, length: Seconds, after: int
    ) -> None:
        if self.draws:
            role = self.program.roles[number].name
            self.spans.append(Span(role, stream, name, "", phase, begin, length, WHOLE_PASS, after))

    def _draw_ops(self, number: int, stage: _Stage, ops: tuple[int, int], begin: tuple[Seconds, int]) -> None:
        rank = Rank(self.program.roles[number], self.durations[number])
        rank.host, rank.device = (stage.host, -1), (begin[0], -1)
        rank.run(*ops, record="ops", reduces=False)
        offset = len(self.spans)
        for span in LazySpans(rank.role, rank.durations, lambda: rank.records):
            after = span.after + offset if span.after >= 0 else begin[1]
            self.spans.append(span._replace(after=after))

    def _update(self, number: int, stage: _Stage) -> None:
        ranges = self.pipeline.ranges[number].values()
        first = max((last for _, last in ranges), default=0)
        if first >= len(self.program.roles[number].graph.ops):
            return
        p = self._pass(number, "optimizer", -1, True)
        begin = max(stage.device, stage.network)
        if stage.network > stage.device:
            self._draw(number, "network", "gradients", "backward", stage.device, begin - stage.device, stage.last)
            stage.last = len(self.spans) - 1
        end = max(begin + p.device, stage.host + p.behind_host)
        if number == self.detailed:
            self._draw_ops(number, stage, (first, len(self.program.roles[number].graph.ops)), (begin, stage.last))
        else:
            self._draw(number, "device", "update", "optimizer", end - p.device, p.device, stage.last)
        stage.busy += p.device
        stage.computing += p.computing
        stage.communicating += p.communicating
        stage.device, stage.host = end, stage.host + p.host
        stage.network = max(stage.network, end - p.device + p.network)

    def _of(self, number: int, action: Action) -> _Pass:
        """An action alone."""
        last = action.micro_batch == self.last_batch and action.phase != "forward"
        return self._pass(number, action.phase, action.chunk, last)

    def _passes(self, number: int, together: Sequence[Action]) -> _Pass:
        """Actions that run together, or one."""
        alone = [self._of(number, action) for action in together]
        delays = bool(self.pipeline.delayed) and together[-1].phase == "backward"
        if len(together) == 1 and not delays:
            return alone[0]
        durations = self.durations[number]
        key = (id(durations), number, tuple((a.phase, a.chunk) for a in together))
        if key not in self.lengths:
            self.lengths[key] = self._side_by_side(number, together)
        length = self.lengths[key]
        return _Pass(
            device=length,
            behind_host=max(length, sum(p.host for p in alone)),
            host=sum(p.host for p in alone),
            network=length + max(max(p.network - p.device for p in alone), 0.0),
            computing=sum(p.computing for p in alone),
            communicating=sum(p.communicating for p in alone),
        )

    def _side_by_side(self, number: int, together: Sequence[Action]) -> Seconds:
        role, durations, ranges = self.program.roles[number], self.durations[number], self.pipeline.ranges[number]
        delayed = self.pipeline.delayed[number] if self.pipeline.delayed else frozenset[int]()
        streams: list[Stream] = []
        for action in together:
            ops = ranges.get((action.phase, action.chunk), (0, 0))
            if action.phase == "weights":
                streams[-1] = streams[-1].with_weights(self._of(number, action).device)
            else:
                streams.append(pieces_of(role, durations, ops, self.pipeline.hides, delayed))
        return side_by_side(streams, durations.slowdown)

    def _pass(self, number: int, phase: str, chunk: int, last: bool) -> _Pass:
        role, durations, ranges = self.program.roles[number], self.durations[number], self.pipeline.ranges[number]
        begin, end = ranges.get((phase, chunk), (0, 0))
        if phase == "optimizer":
            begin, end = max(r[1] for r in ranges.values()), len(role.graph.ops)
        reduces = last and any(begin <= at < end for at in self._once[number])
        key = (id(durations), begin, end, reduces)  # stages that are alike share their durations
        if key not in self.passes:
            warm, cold = Rank(role, durations), Rank(role, durations)
            warm.host = (_LONG_AGO, -1)
            cold.device = (_LONG_AGO, -1)
            for rank in (warm, cold):
                rank.run(begin, end, reduces=reduces)
                if phase == "optimizer":
                    rank.wait_for_the_last()
            self.passes[key] = _Pass(
                device=max(warm.device[0], 0.0),
                behind_host=max(cold.device[0], 0.0),
                host=max(cold.host[0], 0.0),
                network=max((event[0] for event in warm.network.values()), default=0.0),
                computing=warm.computing,
                communicating=warm.communicating,
            )
        return self.passes[key]
