"""The graph and its file: round trips, size, content hash, and files that are not what they say."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import GraphFileError
from foretell.graph import Caveat, Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.graph.facts import HostWork, StepFacts
from foretell.graph.notes import Note
from foretell.plans import PlanTemplate
from foretell.precision import Precision

MATRIX = Layout((64, 32), (32, 1), "float32")
ROW = Layout((1, 32), (0, 1), "bfloat16")


def small_graph(name: str = "small", scale: float = 0.5) -> Graph:
    multiply = Signature(
        "aten.mul.Tensor",
        (MATRIX, ROW),
        (MATRIX,),
        (("self", Input(0)), ("other", Input(1)), ("alpha", scale), ("dims", (0, -1)), ("mode", None)),
    )
    add_ = Signature(
        "aten.add_.Tensor", (MATRIX, MATRIX), (MATRIX,), (("self", Input(0)), ("other", Input(1))), mutates=(0,)
    )
    return Graph(
        name=name,
        ops=(Op(multiply, "forward", "layer.0", (0, 1), (2,)), Op(add_, "backward", "layer.0", (0, 2), (0,), times=3)),
        tensors=(Tensor(MATRIX, 0), Tensor(ROW, 1, 4), Tensor(MATRIX, 2)),
        storages=(Storage(8192, "parameter", -1, 2), Storage(72, "input", -1, 2), Storage(8192, "activation", 0, 1)),
        samples=64, tokens=None, grad_accumulation=4, precision=Precision.parse("amp-bf16"),
        caveats=(Caveat("assumed-values", "routing is uniform", 0.25),), provenance={"torch": "2.13.0"},
    )  # fmt: skip


def test_a_saved_graph_is_read_back_equal(tmp_path: Path) -> None:
    graph = small_graph()
    graph.save(tmp_path / "a.graph")
    again = Graph.load(tmp_path / "a.graph")
    assert again == graph
    assert again.content_hash == graph.content_hash


@given(scale=st.floats(allow_nan=False), name=st.text(min_size=1, max_size=30))
def test_any_name_and_number_survives(tmp_path_factory: pytest.TempPathFactory, scale: float, name: str) -> None:
    path = tmp_path_factory.mktemp("graphs") / "a.graph"
    graph = small_graph(name, scale)
    graph.save(path)
    assert Graph.load(path) == graph


def test_whose_gradient_is_whose_is_kept_and_part_of_the_content(tmp_path: Path) -> None:
    plain = replace(small_graph(), storages=(*small_graph().storages[:2], Storage(8192, "gradient", 0, 1)))
    graph = replace(plain, gradients={0: 2})
    graph.save(tmp_path / "a.graph")
    assert Graph.load(tmp_path / "a.graph").gradients == {0: 2}
    assert len({g.content_hash for g in (graph, plain, replace(graph, gradients={}))}) == 3
    graph = replace(plain, gradients={0: 3})
    graph.save(tmp_path / "a.graph")
    with pytest.raises(GraphFileError, match="points outside its table of 3"):
        Graph.load(tmp_path / "a.graph")


def test_the_hash_follows_the_content() -> None:
    assert small_graph().content_hash == small_graph().content_hash
    assert small_graph().content_hash != small_graph(scale=0.25).content_hash


def test_layouts_know_their_order() -> None:
    rows = Layout.contiguous((2, 3, 4, 5), "float32")
    assert rows.strides == (60, 20, 5, 1)
    assert rows.is_contiguous
    assert not rows.is_channels_last
    images = Layout((2, 3, 4, 5), (60, 1, 15, 3), "float32")
    assert images.is_channels_last
    assert not images.is_contiguous
    assert Layout((1, 3), (99, 1), "float32").is_contiguous  # the stride of a side of one is never used


def test_broadcast_dimensions_are_stored_once() -> None:
    assert Layout((64, 32), (0, 1), "float32").distinct_bytes == 32 * 4
    assert Layout((64, 32), (0, 1), "float32").nbytes == 64 * 32 * 4


@given(cut=st.integers(min_value=0, max_value=100))
def test_a_truncated_file_is_an_error_that_says_what_to_do(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("graphs") / "a.graph"
    small_graph().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * cut // 101])
    with pytest.raises(GraphFileError, match="Capture the workload again"):
        Graph.load(path)


@given(position=st.integers(min_value=0, max_value=10_000), value=st.integers(min_value=0, max_value=255))
def test_a_damaged_file_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("graphs") / "a.graph"
    small_graph().save(path)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    path.write_bytes(bytes(data))
    with contextlib.suppress(GraphFileError):
        Graph.load(path)


def rewritten(path: Path, name: str, data: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members[name] = data
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def changed_header(path: Path, **changes: object) -> None:
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json"))
    rewritten(path, "header.json", json.dumps(header | changes).encode())


def npy(values: list[int], allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    array = np.array(values, dtype=object if allow_pickle else np.int64)
    np.lib.format.write_array(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def test_foreign_and_newer_files_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.graph"
    small_graph().save(path)
    changed_header(path, version=99)
    with pytest.raises(GraphFileError, match="reads up to 6"):
        Graph.load(path)
    changed_header(path, format="something-else")
    with pytest.raises(GraphFileError, match="not a Foretell graph"):
        Graph.load(path)
    path.write_text("hello")
    with pytest.raises(GraphFileError, match="not a whole"):
        Graph.load(path)
    with pytest.raises(GraphFileError, match="no graph file"):
        Graph.load(tmp_path / "none.graph")


def test_indices_outside_their_table_and_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.graph"
    for name, data in (
        ("op_inputs.npy", npy([0, 1, 0, 90])),
        ("tensor_storage.npy", npy([-5, 0, 0])),
        ("op_phase.npy", npy([0, 7])),
        ("op_signature.npy", npy([0, 1], allow_pickle=True)),
    ):
        small_graph().save(path)
        rewritten(path, name, data)
        with pytest.raises(GraphFileError):
            Graph.load(path)


def test_saving_over_a_file_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.graph"
    small_graph().save(path)
    before = path.read_bytes()
    broken = Graph(
        name="broken", ops=(Op(small_graph().ops[0].signature, "no-phase", "", (0,), ()),), tensors=(), storages=()
    )
    with pytest.raises(ValueError, match="not in tuple"):
        broken.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_version_1_files_stay_readable() -> None:
    graph = Graph.load(Path(__file__).parents[1] / "data" / "version-1.graph")
    assert graph == small_graph("version-1")
    assert graph.gradients is None
    assert graph.content_hash == "d02cc3d2428dfb64b387ace5dd152e71892f0b81506ad5ef3f1ed250f538b83c"  # as stores know it


FACTS = StepFacts(
    parameters=2048,
    inputs=(64, 32),
    optimizer="fused AdamW",
    plan=PlanTemplate(source="train.py", by="script", settings={"zero": 3}, devices=8),
    host=HostWork(ops=3, drawn=5, moved=7, copied=11, pinned=13, waits=True),
)


def test_version_3_files_stay_readable_with_their_facts_as_types(tmp_path: Path) -> None:
    graph = Graph.load(Path(__file__).parents[1] / "data" / "version-3.graph")
    assert graph.facts == FACTS
    assert dict(graph.provenance) == {"torch": "2.13.0", "python": "3.11.9", "captured_on": "x86_64"}
    assert graph.precision.name == "parameters:fp32/compute:bf16/reduce:fp32"
    hashed = "b4fa3aab188de68f49a9ca0a3bd2a7284f2017adf7b826178a5f3ba4895a1f1d"  # as stores know it
    graph.save(tmp_path / "a.graph")
    again = Graph.load(tmp_path / "a.graph")
    assert again == graph
    assert graph.content_hash == again.content_hash == hashed


def test_notes_are_of_a_format_of_their_own(tmp_path: Path) -> None:
    """Builds that know no notes refuse the file by its number; without notes they read it as before."""
    noted = replace(FACTS, notes=(Note(topic="stand-in", what="data/train", taken="1,000 classes"),))
    for facts, version in ((FACTS, 4), (noted, 5)):
        graph = replace(small_graph(), facts=facts)
        graph.save(tmp_path / "a.graph")
        with zipfile.ZipFile(tmp_path / "a.graph") as archive:
            assert json.loads(archive.read("header.json"))["version"] == version
        assert Graph.load(tmp_path / "a.graph") == graph
        assert graph.content_hash == replace(small_graph(), facts=FACTS).content_hash


OTHER_PLAN = PlanTemplate(source="run.toml", by="configuration", settings={"zero": 3}, copies="nodes", global_batch=64)


@pytest.mark.parametrize("facts", [StepFacts(), FACTS, replace(FACTS, plan=OTHER_PLAN), StepFacts(inputs=())])
@pytest.mark.parametrize("gradients", [None, {}])
def test_facts_of_a_step_are_read_back_equal(
    tmp_path: Path, facts: StepFacts, gradients: dict[int, int] | None
) -> None:
    graph = replace(small_graph(), facts=facts, gradients=gradients)
    graph.save(tmp_path / "a.graph")
    assert Graph.load(tmp_path / "a.graph") == graph
    assert (graph.content_hash == small_graph().content_hash) == (facts == StepFacts() and gradients is None)


@pytest.mark.parametrize(
    "facts",
    [[], {"parameters": -1}, {"parameters": "2048"}, {"inputs": [8, -1]}, {"plan": "dp=8"}, {"plan": {"zero": 3}}, {"host": {"ops": 1.5}},
     {"optimizer": 7}, {"colour": "red"}],
)  # fmt: skip
def test_facts_that_are_none_are_refused(tmp_path: Path, facts: object) -> None:
    path = tmp_path / "a.graph"
    replace(small_graph(), facts=FACTS).save(path)
    changed_header(path, facts=facts)
    with pytest.raises(GraphFileError, match="not a whole Foretell graph file"):
        Graph.load(path)


def test_a_graph_forgets_what_was_asked_for_longest_ago() -> None:
    graph, made = Graph(name="g", ops=(), tensors=(), storages=()), list[int]()

    def remember(key: int) -> int:
        return graph.remember(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    for key in range(32):
        remember(key)
    remember(0)
    remember(32)
    made.clear()
    assert [remember(key) for key in (0, 2, 31, 32)] == [0, 2, 31, 32]
    assert not made
    remember(1)
    assert made == [1]
