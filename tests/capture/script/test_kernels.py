"""Kernels that cannot run here: declared, known, or named with what to do about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import foretell
from foretell.capture.script.pretend.kernels import xformers
from foretell.capture.script.pretend.kernels.extension_shapes import SHARED
from foretell.capture.script.pretend.kernels.known import known
from foretell.errors import InputError, WorkloadError
from foretell.graph.operators import OPAQUE
from tests.capture.script.conftest import Write

LOOP = """
for step in range(5):
    loss = model(torch.randn(64, 256).cuda()).float().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(256, 512), nn.Parameter(torch.randn(128, 512))

    def forward(self, x):
        return kernel(self.first(x), self.weight)

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

SDPA = "aten._scaled_dot_product"


def targets(graph: foretell.Graph) -> list[str]:
    return [op.target for op in graph.ops]


def test_a_declared_operation_is_an_op_with_its_cost_and_gradients(script: Write) -> None:
    declared = """
import foretell, torch
from torch import nn

@foretell.opaque(outputs=lambda x, w: x.new_empty(x.shape[0], w.shape[0]), flops=lambda x, w: 2 * x.numel() * w.shape[0])
def kernel(x, w):
    raise RuntimeError("needs a GPU")
"""
    graph = foretell.capture_graph(script(declared + MODEL + LOOP))
    found = {op.target: op.signature for op in graph.ops if op.signature.name == OPAQUE}
    assert list(found) == ["foretell.opaque.kernel", "foretell.opaque.kernel_backward"]
    forward, backward = found.values()
    assert forward.argument("flops") == 2 * 64 * 512 * 128
    assert backward.argument("flops") == 2 * forward.argument("flops")  # type: ignore[operator]
    assert forward.argument("traffic") == 4 * (64 * 512 + 128 * 512 + 64 * 128)
    assert [layout.shape for layout in backward.inputs[-2:]] == [(64, 512), (128, 512)]  # gradients, which it writes
    again = foretell.Graph.from_bytes(graph.to_bytes())
    answer = foretell.forecast(again, "h200")
    (caveat,) = (c for c in answer.caveats if c.code == "opaque-operations")
    assert "kernel, kernel_backward" in caveat.text
    assert caveat.share


def test_a_file_declares_what_a_script_imports(script: Write, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(
        "import foretell\n"
        "foretell.opaque('fastscan.ops.scan', outputs=lambda x, w: x.new_empty(len(x), len(w)), flops=1e6)\n"
    )
    text = "import torch\nfrom torch import nn\nfrom fastscan.ops import scan as kernel\n" + MODEL + LOOP
    graph = foretell.capture_graph(script(text, opaque=str(tmp_path / "kernels.py")))
    assert "foretell.opaque.scan" in targets(graph)
    with pytest.raises(WorkloadError, match="fastscan"):
        foretell.capture_graph(script(text))


def test_outside_of_captures_a_declared_function_is_itself() -> None:
    assert foretell.opaque(lambda x: x + 1, flops=3.0)(2) == 3
    with pytest.raises(InputError, match="flops"):
        foretell.opaque(lambda x: x, flops=-1.0)
    with pytest.raises(InputError, match="no path"):
        foretell.opaque("scan")
    with pytest.raises(InputError, match="outputs"):
        foretell.opaque(lambda x: x, outputs=torch.zeros(1))


@pytest.mark.parametrize(
    ("imported", "called", "op"),
    [
        ("from flash_attn import flash_attn_func as f", "f(q, q, q, causal=True)", f"{SDPA}_flash_attention.default"),
        ("import flash_attn as f", "f.flash_attn_varlen_func(q[0], q[0], q[0], s, s, 32, 32)", "foretell.opaque.flash_attn_varlen_func"),
        ("import xformers.ops as x", "x.memory_efficient_attention(q, q, q, x.LowerTriangularMask())",
         f"{SDPA}_efficient_attention.default"),
        ("from xformers.ops import fmha, memory_efficient_attention as a; B = fmha.BlockDiagonalMask.from_tensor_list",
         "a(*[B([q, q[:, :8]])[1]] * 3, attn_bias=B([q, q[:, :8]])[0])", f"{SDPA}_efficient_attention.default"),
        ("from torch.nn.attention.flex_attention import flex_attention as f", "f(q, q, q)", "foretell.opaque.flex_attention"),
        ("from apex.normalization import FusedLayerNorm as N; n = N(64).cuda()", "n(q)", "aten.native_layer_norm.default"),
    ],
)  # fmt: skip
def test_known_kernels_are_torchs_own(script: Write, imported: str, called: str, op: str) -> None:
    text = f"""
        import torch
        from torch import nn
        {imported}
        s = torch.tensor([0, 32])
        model = nn.Linear(64, 64, dtype=torch.bfloat16).cuda()
        if "n" in globals():
            n.to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            q = model(torch.randn(2, 32, 4, 64, dtype=torch.bfloat16, device="cuda"))
            {called}.sum().backward()
            optimizer.step()
    """
    graph = foretell.capture_graph(script(text))
    assert op in targets(graph)
    assert f"{op.removesuffix('.default')}_backward" in " ".join(targets(graph))


def test_sequences_of_many_lengths_are_put_together_and_taken_apart() -> None:
    tensors = [torch.rand(2, 5, 3), torch.rand(4, 2, 3)]
    mask, together = xformers.BlockDiagonalMask.from_tensor_list(tensors)
    assert (together.shape, list(mask.runs())) == ((1, 18, 3), [(2, 5), (4, 2)])
    assert all(torch.equal(own, its) for own, its in zip(mask.split(together), tensors, strict=True))
    assert sum(p.numel() for p in xformers.SwiGLU(8, 16).parameters()) == 8 * 32 + 32 + 16 * 8 + 8


def test_a_fused_loss_never_has_all_logits_and_fused_adam_is_one_kernel(script: Write) -> None:
    text = """
        import torch
        from torch import nn
        from apex.optimizers import FusedAdam
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
        body, head = nn.Linear(64, 64).cuda(), nn.Linear(64, 8000, bias=False).cuda()
        optimizer = FusedAdam([*body.parameters(), *head.parameters()], lr=1e-3)
        loss = LigerFusedLinearCrossEntropyLoss()
        for step in range(5):
            x, y = torch.randn(500, 64).cuda(), torch.randint(8000, (500,)).cuda()
            loss(head.weight, body(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    graph = foretell.capture_graph(script(text))
    assert "aten._fused_adamw_.default" in targets(graph)
    assert not any(t.layout.shape == (500, 8000) for t in graph.tensors)
    (caveat,) = (c for c in graph.caveats if c.code == "kernels-stood-in")
    assert "LigerFusedLinearCrossEntropyLoss" in caveat.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from mamba_ssm import Mamba2\nMamba2(64)", r"mamba_ssm\.Mamba2.*foretell\.opaque\('mamba_ssm\.Mamba2'"),
        ("import triton, triton.language as tl\n@triton.jit\ndef add(x, BLOCK: tl.constexpr): pass\nadd[(1,)](0, BLOCK=8)",
         r"launches add, a Triton kernel.*@foretell\.opaque"),
        ("from torch.utils.cpp_extension import load\nload('mine', ['a.cu']).forward(1)", r"mine\.forward.*foretell\.opaque"),
    ],
)  # fmt: skip
def test_unknown_kernels_are_named_with_the_way_to_declare_them(script: Write, text: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        foretell.capture_graph(script(text))


def test_flex_attention_gives_what_is_asked_beside_it_and_runs_in_a_checkpoint(script: Write) -> None:
    text = """
        import torch
        from torch import nn
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
        from torch.utils.checkpoint import checkpoint
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.project = nn.Linear(64, 192)
            def forward(self, x):
                q, k, v = (t.view(2, 128, 4, 16).transpose(1, 2) for t in self.project(x).chunk(3, -1))
                mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128)
                out, aux = flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))
                assert aux.lse.shape == (2, 4, 128) and aux.max_scores is None
                assert flex_attention(q, k, v).shape == out.shape
                return out.transpose(1, 2).reshape(2, 128, 64)
        block = Block().cuda()
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        for step in range(5):
            checkpoint(block, torch.randn(2, 128, 64).cuda(), use_reentrant=False).sum().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    found = targets(foretell.capture_graph(script(text)))
    assert found.count("foretell.opaque.flex_attention") == 4  # two, and again in the backward pass
    assert found.count("foretell.opaque.flex_attention_backward") == 1


MANY = """
    import sys, types
    import torch, torch.nn.functional as F
    from torch import nn
    from apex import amp
    from apex.normalization.fused_layer_norm import FusedLayerNorm
    from apex.optimizers import FusedLAMB
    from flash_attn.bert_padding import pad_input, unpad_input
    from flash_attn import flash_attn_varlen_kvpacked_func as attend
    from inplace_abn import InPlaceABN
    from mamba_ssm import Mamba
    from torch_scatter import scatter_mean, scatter_max
    from torch.utils.cpp_extension import load
    import triton, triton.language as tl
    try:
        from mamba_ssm.ops.triton.layernorm import RMSNorm
    except ImportError:
        RMSNorm = None
    assert RMSNorm is None

    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        pass

    filters = load("filters", sources=["a.cu"])

    class Own(FusedLayerNorm):
        pass

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scan, self.norm, self.abn, self.last = Mamba(64), Own(64), InPlaceABN(64), nn.Linear(64, 8)

        def forward(self, x, mask):
            x = self.norm(self.scan(x))
            rows, where, starts, longest, *_ = unpad_input(x, mask)
            q = rows.view(-1, 4, 16).half()
            q = attend(q, torch.stack((q, q), 1), starts, starts, longest, longest, causal=True, window_size=(8, 0))
            x = pad_input(q.float().view(-1, 64), where, *mask.shape)
            x = self.abn(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
            add[(1,)](x, x, 4, BLOCK=8)
            assert filters.upfirdn2d(x[..., None], torch.ones(4, 4, device="cuda"), 2, 2, 1, 1, 2, 1, 2, 1).shape[1] == 64
            pooled = scatter_mean(x.flatten(0, 1), torch.arange(2, device="cuda").repeat_interleave(32), dim=0)
            assert pooled.shape == (2, 64) and scatter_max(pooled, torch.zeros(2, dtype=torch.long, device="cuda"), 0)[1].shape == (1, 64)
            return self.last(pooled)

    model = Model().cuda()
    optimizer = FusedLAMB(model.parameters(), lr=1e-3)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step in range(5):
        loss = model(torch.randn(2, 32, 64).cuda(), torch.ones(2, 32, dtype=torch.long).cuda()).sum()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_filtered_activation_has_the_shape_of_both_filters_and_keeps_two_bits_a_point() -> None:
    taps = torch.ones(12)
    x = torch.zeros(2, 8, 16, 16)
    given = (x, taps, taps, torch.zeros(8), torch.empty(0), 2, 2, 11, 10, 11, 10, 0, 0, 1.0, 0.2, 256.0, False)
    shared = SHARED["filtered_lrelu"]
    made, signs = shared.outputs(*given, True)
    up = torch.nn.functional.conv_transpose2d(x[:, :1], torch.ones(1, 1, 1, 1), stride=2, output_padding=1)
    between = torch.nn.functional.conv2d(torch.nn.functional.pad(up, (11, 10, 11, 10)), torch.ones(1, 1, 12, 12))
    after = torch.nn.functional.conv2d(between, torch.ones(1, 1, 12, 12), stride=2)
    assert made.shape == (2, 8, *after.shape[2:])
    assert signs.dtype is torch.uint8
    assert 4 * signs.shape[3] - 16 < between.shape[3] <= 4 * signs.shape[3]
    assert signs.shape[2] == between.shape[2]
    assert shared.outputs(*given, False)[1].numel() == 0
    assert callable(shared.flops)
    assert shared.flops(*given, True) == 2 * 16 * (between[0, 0].numel() * 12 + after[0, 0].numel() * 24)


def test_packages_that_are_not_installed_run_as_torchs_own(script: Write) -> None:
    graph = foretell.capture_graph(script(MANY))
    found = targets(graph)
    for name in (
        "selective_scan_fn",
        "selective_scan_fn_backward",
        "causal_conv1d_fn",
        "flash_attn_varlen_func",
        "add",
    ):
        assert f"foretell.opaque.{name}" in found
    assert str(graph.precision) == "amp-fp16"
    notes = " ".join(c.text for c in graph.caveats if c.code == "kernel-settings-not-modelled")
    assert "window_size" in notes
    assert "Triton's add" in notes


COMPILED = """
    import torch
    from torch import nn
    from torch.utils.cpp_extension import load

    ops = torch.ops.wkv_of_mine
    wkv = load(name="wkv_cuda", sources=["a.cu"])
    scale = torch.cuda._compile_kernel("__global__ void scale(float* x) {}", "scale", compute_capability="90")
    scale.set_shared_memory_config(1024)
    load(name="wkv_of_mine", sources=["b.cu"], is_python_module=False)

    class Wkv(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k):
            y = torch.empty_like(k)
            wkv.forward(k, y)
            scale((1, 1, 1), (128, 1, 1), (y, 4, 0.5), shared_mem=1024)
            ctx.save_for_backward(k)
            return y

        @staticmethod
        def backward(ctx, gy):
            gk = torch.empty_like(gy)
            ops.backward(ctx.saved_tensors[0], gy, gk)
            return gk

    model = nn.Linear(16, 16).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        Wkv.apply(wkv.declared(model(torch.randn(8, 16).cuda()))).sum().backward()
        optimizer.step()
"""


def test_a_compiled_function_writes_into_what_it_is_given(script: Write, tmp_path: Path) -> None:
    declared = tmp_path / "kernels.py"
    declared.write_text(
        "import foretell\nforetell.opaque('wkv_cuda.declared', outputs=lambda x: x.new_empty(x.shape))\n"
    )
    graph = foretell.capture_graph(script(COMPILED, opaque=str(declared)))
    found = set(targets(graph))
    assert {f"foretell.opaque.{n}" for n in ("wkv_cuda_forward", "wkv_of_mine_backward", "declared", "scale")} <= found
    assert any("scale, compiled from its source, is priced by the bytes" in caveat.text for caveat in graph.caveats)


BUILT = """
    import torch
    from torch import nn
    import my_ops_cuda as ops
    from kernels import get_kernel

    attention = get_kernel("kernels-community/flash-attn3", version=1).flash_attn_interface

    class Attend(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, points, weights):
            ctx.save_for_backward(value, points, weights)
            return ops.ms_deform_attn_forward(value, None, None, points, weights, 64)

        @staticmethod
        def backward(ctx, gradient):
            value, points, weights = ctx.saved_tensors
            found = ops.gradients_of_mine(value, points, weights, gradient)
            return found[0], None, found[1]

    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = model(torch.randn(2, 20, 64).cuda())
        points = torch.rand(2, 5, 4, 3, 2, 2).cuda()
        made = Attend.apply(x.view(2, 20, 4, 16), points, x.mean() * torch.ones_like(points[..., 0]))
        assert made.shape == (2, 5, 64)
        q = made.view(2, 5, 4, 16).half()
        (made.sum() + attention.flash_attn_func(q, q, q, causal=True).float().sum()).backward()
        optimizer.step()
"""


def test_what_a_setup_would_have_built_is_known_by_its_functions(script: Write, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / "ops" / "setup.py").write_text("setup(ext_modules=[CUDAExtension('my_ops_cuda', ['a.cu'])])\n")
    graph = foretell.capture_graph(script(BUILT))
    found = set(targets(graph))
    assert {"foretell.opaque.ms_deform_attn_forward", "foretell.opaque.my_ops_cuda_gradients_of_mine"} <= found
    assert any(SDPA in target for target in found)
    assert any("my_ops_cuda.gradients_of_mine, compiled, is priced by the bytes" in c.text for c in graph.caveats)


ENGINE = """
import torch
import transformer_engine.pytorch as te
from torch import nn
from transformer_engine.common import recipe

model = nn.Sequential(*(nn.Sequential(te.Linear(256, 256), nn.ReLU(), te.Linear(256, 256)) for _ in range(3))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaling = recipe.SCALING
for step in range(5):
    with torch.autocast("cuda", dtype=torch.bfloat16), te.fp8_autocast(enabled=ENABLED, fp8_recipe=scaling):
        loss = model(torch.randn(64, 256).cuda()).float().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scaling", "enabled", "name"),
    [
        ("DelayedScaling(fp8_format=recipe.Format.HYBRID)", "True", "parameters:fp32/autocast:bf16/fp8:delayed"),
        ("Float8CurrentScaling()", "True", "parameters:fp32/autocast:bf16/fp8:current"),
        ("MXFP8BlockScaling()", "False", "amp-bf16"),
    ],
)
def test_fp8_of_transformer_engine_is_a_precision(script: Write, scaling: str, enabled: str, name: str) -> None:
    graph = foretell.capture_graph(script(ENGINE.replace("SCALING", scaling).replace("ENABLED", enabled)))
    assert graph.precision.name == name
    assert not any("fp8_autocast is not modelled" in caveat.text for caveat in graph.caveats)


def test_an_installed_library_of_kernels_finds_triton_where_it_could_not_be_imported_without(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages" / "fastkernels"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(
        "import torch, triton, triton.language as tl\n"
        "@triton.jit\ndef gate(x, y, n: tl.constexpr):\n    pass\n"
        "class Gate(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n"
        "        y = torch.empty_like(x); gate[(triton.cdiv(x.numel(), 64),)](x, y, 64); return y\n"
        "    @staticmethod\n    def backward(ctx, g):\n"
        "        out = torch.empty_like(g); gate[(1,)](g, out, 64); return out\n"
    )
    (library / "others.py").write_text("try:\n    import triton\nexcept ImportError:\n    triton = None\n")
    monkeypatch.syspath_prepend(str(library.parent))
    tried = "import torch; from torch import nn; from fastkernels import Gate, others\n"
    graph = foretell.capture_graph(
        script(tried + MODEL.replace("kernel(self.first(x), self.weight)", "Gate.apply(self.first(x))") + LOOP)
    )
    assert any("gate" in target for target in targets(graph))


def test_a_family_of_models_that_liger_patches_needs_no_name_here() -> None:
    assert known("liger_kernel.transformers.apply_liger_kernel_to_a_model_of_tomorrow") is not None
    assert known("liger_kernel.transformers.LigerUnheardOf") is None
