"""torchvision's data sets that are not on this machine."""

from __future__ import annotations

import foretell
from foretell.capture.script.pretend.picture_sets import SETS, folder_classes
from tests.capture.script.conftest import Write

EACH = """
    import torch
    from torchvision import datasets, transforms
    def shape(made):
        picture, target = made[1]
        return len(made), tuple(picture.shape), target
    to = transforms.ToTensor()
    assert shape(datasets.MNIST("/nowhere", transform=to, download=True))[:2] == (60000, (1, 28, 28))
    assert shape(datasets.QMNIST("/nowhere", what="test", transform=to))[0] == 60000
    assert shape(datasets.EMNIST("/nowhere", "letters", train=False, transform=to))[0] == 20800
    assert shape(datasets.CIFAR100("/nowhere", False, to, download=True))[:2] == (10000, (3, 32, 32))
    assert shape(datasets.SVHN("/nowhere", "train", to))[:2] == (73257, (3, 32, 32))
    assert shape(datasets.STL10("/nowhere", "unlabeled", transform=to))[:2] == (100000, (3, 96, 96))
    assert shape(datasets.Flowers102("/nowhere", split="test", transform=to, download=True))[:2] == (6149, (3, 500, 625))
    faces = datasets.CelebA("/nowhere", split="valid", target_type="attr", transform=to)
    assert shape(faces)[0] == 19867 and faces[0][1].shape == (40,)
    masks = datasets.VOCSegmentation("/nowhere", image_set="train", transform=to, target_transform=transforms.PILToTensor())
    assert shape(masks)[0] == 1464 and shape(masks)[2].shape == (1, 375, 500)
    boxes = datasets.VOCDetection("/nowhere", year="2012", image_set="val")
    assert boxes[3][1]["annotation"]["object"][0]["bndbox"]["xmin"] == "48"
    class Twice(datasets.CIFAR10):
        def __getitem__(self, i):
            return to(self.data[i]), to(self.data[i]), self.targets[i]
    class Pets(datasets.OxfordIIITPet):
        def __getitem__(self, i):
            picture, label = super().__getitem__(i)
            return to(picture.resize((32, 32))), label
    pets = Pets("/nowhere")
    assert len(pets) == 3680 and pets[0][0].shape == (3, 32, 32)
    folder = datasets.ImageFolder("/nowhere/imagenette2/train", to)
    assert len(folder.classes) == 10 and len(datasets.ImageFolder("/nowhere/train", to).classes) == 1000
    assert len(datasets.ImageNet("/nowhere", "val").classes) == 1000
    twice = Twice("/nowhere")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, len(twice.classes))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, again, y in torch.utils.data.DataLoader(twice, batch_size=4):
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_sets_have_their_published_samples_and_targets(script: Write) -> None:
    graph = foretell.capture_graph(script(EACH, fake_data=True))
    assert graph.facts.parameters == 3072 * 10 + 10
    (text,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    for what in ("pictures of MNIST", "pictures of VOCDetection", "/nowhere/imagenette2/train (10 classes)"):
        assert what in text


def test_every_set_has_parts_and_folders_say_what_they_are() -> None:
    for name, known in SETS.items():
        assert min(known.parts.values()) > 0, name
    assert folder_classes("data/tiny-imagenet-200/train") == 200


TIMM = """
    import torch
    from timm.data import create_dataset, create_loader
    made = create_dataset("", root="/nowhere/imagenet", split="train", is_training=True, batch_size=4)
    loader = create_loader(made, (3, 32, 32), 4, is_training=True, use_prefetcher=False, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 1000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_timm_reads_a_folder_that_is_not_there(script: Write) -> None:
    graph = foretell.capture_graph(script(TIMM, fake_data=True))
    assert graph.facts.inputs == (4, 3, 32, 32)
    assert any(c.code == "fake-data" and "/nowhere/imagenet (1,000 classes)" in c.text for c in graph.caveats)


MEANT = """
    import argparse, os
    import torch, torchvision
    from PIL import Image, ImageOps

    def main(args):
        names = [name for name in os.listdir("data/train") if os.path.isdir(os.path.join("data/train", name))]
        assert len(names) == args.num_domains, names
        assert len(torchvision.datasets.ImageFolder("data/val").classes) == args.num_domains
        assert len(torchvision.datasets.ImageFolder("data/imagenet/val").classes) == 1000
        known = torchvision.datasets.CIFAR10("data", download=True)
        assert len(known.train_data) == len(known.train_labels) == 50000
        ImageOps.posterize(Image.new("RGB", (4, 4)), 0)
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            model(torch.randn(8, 4).cuda()).sum().backward()
            optimizer.step()

    parser = argparse.ArgumentParser()
    parser.add_argument("--num_domains", type=int, default=2)
    main(parser.parse_args())
"""


def test_folders_are_as_many_as_the_script_says(script: Write) -> None:
    graph = foretell.capture_graph(script(MEANT, fake_data=True, arguments=("--num_domains", "3")))
    assert graph.samples == 8
    assert "data/val (3 classes)" in " ".join(c.text for c in graph.caveats)
