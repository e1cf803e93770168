"""A small network taught by a large one: a frozen teacher, two losses, pictures made on the host in every step."""

import argparse
import sys

import torch
import torch.nn.functional as F
import torchvision


def parse(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--teacher", default="resnet50")
    parser.add_argument("--student", default="mobilenet_v3_large")
    parser.add_argument("--temperature", type=float, default=4.0)
    return parser.parse_args(arguments)


def loss_of(student, teacher, labels, temperature):
    soft = F.kl_div(F.log_softmax(student / temperature, 1), F.softmax(teacher / temperature, 1), reduction="batchmean")
    return 0.9 * temperature**2 * soft + 0.1 * F.cross_entropy(student, labels)


def main():
    options = parse(sys.argv[1:])
    teacher = torchvision.models.get_model(options.teacher, weights=None).cuda().eval().requires_grad_(False)
    student = torchvision.models.get_model(options.student, weights=None).cuda()
    optimizer = torch.optim.RMSprop(student.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    for step in range(10_000):
        pictures = torch.rand(options.batch, 3, 224, 224).cuda()
        labels = torch.randint(1000, (options.batch,)).cuda()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            taught = teacher(pictures)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(student(pictures), taught, labels, options.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"{step} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
