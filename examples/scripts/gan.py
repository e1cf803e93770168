"""A small GAN, its discriminator and generator updated in turn."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--latent", type=int, default=100)
parser.add_argument("--width", type=int, default=64)
options = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layer(kind, inputs, outputs, stride, padding):
    return nn.Sequential(kind(inputs, outputs, 4, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True))


width = options.width
generator = nn.Sequential(
    layer(nn.ConvTranspose2d, options.latent, width * 8, 1, 0),
    layer(nn.ConvTranspose2d, width * 8, width * 4, 2, 1),
    layer(nn.ConvTranspose2d, width * 4, width * 2, 2, 1),
    nn.ConvTranspose2d(width * 2, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
discriminator = nn.Sequential(
    nn.Conv2d(3, width, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    layer(nn.Conv2d, width, width * 2, 2, 1),
    layer(nn.Conv2d, width * 2, width * 4, 2, 1),
    nn.Conv2d(width * 4, 1, 4, 1, 0, bias=False),
    nn.Flatten(0),
).to(device)
criterion = nn.BCEWithLogitsLoss()
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))

for step in range(1000):
    real = torch.randn(options.batch, 3, 32, 32).to(device)
    label = torch.full((options.batch,), 1.0, device=device)
    of_discriminator.zero_grad()
    loss_real = criterion(discriminator(real), label)
    loss_real.backward()
    noise = torch.randn(options.batch, options.latent, 1, 1, device=device)
    fake = generator(noise)
    label.fill_(0.0)
    loss_fake = criterion(discriminator(fake.detach()), label)
    loss_fake.backward()
    of_discriminator.step()
    of_generator.zero_grad()
    label.fill_(1.0)
    loss = criterion(discriminator(fake), label)
    loss.backward()
    of_generator.step()
    if step % 50 == 0:
        print(f"{step}: discriminator {loss_real.item() + loss_fake.item():.4f}, generator {loss.item():.4f}")
