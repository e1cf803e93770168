"""A denoising U-Net: noise added on the device, a moving average of the weights, bf16 autocast."""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--steps", type=int, default=100_000)
options = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"


class Residual(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class Attend(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(y)


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        time = 4 * width
        widths = [width, 2 * width, 4 * width]
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(a, b, time) for a, b in zip([width, *widths[:-1]], widths, strict=True)])
        self.middle1, self.attend = Residual(widths[-1], widths[-1], time), Attend(widths[-1])
        self.middle2 = Residual(widths[-1], widths[-1], time)
        backwards = widths[::-1]
        self.up = nn.ModuleList(
            [Residual(2 * a, b, time) for a, b in zip(backwards, [*backwards[1:], width], strict=True)]
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        rates = torch.exp(-math.log(10000) * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        angles = t[:, None].float() * rates[None]
        t = self.embed(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, kept = self.first(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle2(self.attend(self.middle1(x, t)), t)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), kept.pop()], dim=1), t)
        return self.last(x)


model = UNet(options.width).to(device)
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=device), 0)
for step in range(options.steps):
    clean = torch.rand(options.batch, 3, options.size, options.size).to(device, non_blocking=True)
    t = torch.randint(0, 1000, (options.batch,), device=device)
    noise = torch.randn_like(clean)
    alpha = alphas[t][:, None, None, None]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(alpha.sqrt() * clean + (1 - alpha).sqrt() * noise, t), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 1e-3)
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}")
