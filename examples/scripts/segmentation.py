"""Semantic segmentation in the style of torchvision's reference: an auxiliary loss, two rates, polynomial decay."""

import argparse

import torch
import torchvision
from torch import nn


class Scenes(torch.utils.data.Dataset):
    def __init__(self, size, classes):
        self.size, self.classes = size, classes

    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        return torch.zeros(3, self.size, self.size), torch.full((self.size, self.size), i % self.classes)


def criterion(outputs, target):
    losses = {name: nn.functional.cross_entropy(x, target, ignore_index=255) for name, x in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"]


def main(args):
    device = torch.device(args.device)
    model = torchvision.models.segmentation.fcn_resnet50(
        weights=None, weights_backbone=None, num_classes=args.classes, aux_loss=True
    ).to(device)
    groups = [
        {"params": [p for p in model.backbone.parameters() if p.requires_grad]},
        {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
        {"params": [p for p in model.aux_classifier.parameters() if p.requires_grad], "lr": args.lr * 10},
    ]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    loader = torch.utils.data.DataLoader(
        Scenes(args.size, args.classes), batch_size=args.batch_size, num_workers=12, pin_memory=True, drop_last=True
    )
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=len(loader) * 30, power=0.9)
    model.train()
    for image, target in loader:
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    main(parser.parse_args())
