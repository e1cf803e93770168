"""ResNet-50 on random images: foretell predict examples/resnet.py:resnet --set batch=256 --on 8xh100-sxm"""

import torch
import torchvision

import foretell


def resnet(batch: int = 64, channels_last: bool = False) -> foretell.Workload:
    return foretell.Workload(
        name="resnet50",
        model=lambda: torchvision.models.resnet50(),
        batch=lambda: {"x": torch.randn(batch, 3, 224, 224), "y": torch.randint(1000, (batch,))},
        loss=lambda model, b: torch.nn.functional.cross_entropy(model(b["x"]), b["y"]),
        optimizer=lambda params: torch.optim.AdamW(params),
        precision="amp-bf16",
        channels_last=channels_last,
    )
