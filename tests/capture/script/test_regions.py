"""torchvision's operators of regions and of offsets, where its compiled ones do not load."""

from __future__ import annotations

import pytest

import foretell
from tests.capture.script.conftest import Write

POOLED = """
    import torch, torchvision.ops as ops
    net = torch.nn.Conv2d(3, 18, 3).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        features = net(torch.rand(2, 3, 34, 34, device="cuda"))
        regions = torch.tensor([[0, 0, 0, 9, 9], [1, 0, 0, 9, 9.]]).cuda()
        ops.POOL(features, regions, SIZE).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""
DEFORMED = """
    import torch
    from torchvision.ops import DeformConv2d
    moves, net = torch.nn.Conv2d(4, 27, 3, padding=1).cuda(), DeformConv2d(4, 6, 3, padding=1, groups=2).cuda()
    optimizer = torch.optim.SGD([*net.parameters(), *moves.parameters()], lr=0.1)
    for _ in range(4):
        x = torch.rand(2, 4, 16, 16, device="cuda")
        offset = moves(x)
        net(x, offset[:, :18], offset[:, 18:].sigmoid()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("pool", "channels"), [("roi_pool", 18), ("ps_roi_pool", 2), ("ps_roi_align", 2)])
def test_regions_are_pooled_and_their_gradients_come_back(script: Write, pool: str, channels: int) -> None:
    graph = foretell.capture_graph(script(POOLED.replace("POOL", pool).replace("SIZE", "(3, 3)")))
    shapes = {layout.shape for op in graph.ops for layout in op.signature.outputs}
    assert {(2, channels, 3, 3), (18, 3, 3, 3)} <= shapes


def test_a_convolution_with_offsets_is_a_gathering_and_a_product(script: Write) -> None:
    graph = foretell.capture_graph(script(DEFORMED))
    shapes = {layout.shape for op in graph.ops for layout in op.signature.outputs}
    assert {(2, 36, 256), (2, 27, 16, 16), (6, 2, 3, 3)} <= shapes
