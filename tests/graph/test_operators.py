"""The table of operator facts: by exact names, and whole for the installed torch."""

from __future__ import annotations

import pytest
import torch

from foretell.graph.operators import ATTENTION, Operator, Registry, names_of, operator_of, register


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("aten.addmm", "matmul"), ("aten.convolution", "convolution"), ("aten._foreach_mul_", "foreach"),
        ("aten._fused_adamw_", "foreach"), ("aten.gelu", "elementwise"), ("aten.clone", "copy"),
        ("aten._softmax", "reduction"), ("aten.embedding", "index"), ("mylib.odd", "elementwise"),
        ("aten._fused_rms_norm", "norm"), ("aten._fused_rms_norm_backward", "norm_backward"),
        ("aten._fused_dropout", "elementwise"), ("mylib._foreach_odd", "elementwise"),
    ],
)  # fmt: skip
def test_families(name: str, family: str) -> None:
    assert operator_of(name).family == family
    assert operator_of(name).walks_a_list == (family == "foreach")


def test_an_operator_that_is_not_in_the_table_is_elementwise() -> None:
    odd = operator_of("mylib.odd")
    assert odd == Operator(name="mylib.odd", family="elementwise")
    assert odd.launches
    assert not odd.waits


def test_registering_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"aten\.mm is registered already, as matmul"):
        register(Operator(name="aten.mm", family="copy"))
    formula = Registry[object]("a formula")  # type: ignore[type-var]
    formula("aten.mm")(print)
    with pytest.raises(ValueError, match=r"a formula for aten\.mm is registered already"):
        formula("aten.mm")(print)


def test_every_foreach_operator_and_fused_optimizer_of_torch_is_there() -> None:
    known = {schema.name.replace("::", ".") for schema in torch._C._jit_get_all_schemas()}
    foreach = {name for name in known if name.startswith(("aten._foreach_", "aten._amp_foreach_"))}
    optimizers = {name for name in known if name.startswith(("aten._fused_ad", "aten._fused_sgd"))}
    assert foreach | optimizers <= set(names_of("foreach"))


def test_attention_has_three_kernels_each_way() -> None:
    assert len(names_of("attention", *ATTENTION)) == len(names_of("attention_backward")) == 3
    assert all(operator_of(name).is_attention for name in names_of("attention", *ATTENTION))
    assert not operator_of("aten._native_multi_head_attention").is_attention
