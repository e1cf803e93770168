"""Limits of files: on their page, and checked before much is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell import Cluster, InputError, Profile
from foretell.cost.files import load_arrays
from foretell.errors import CatalogError, ProfileError, SourceError
from foretell.hardware.catalog import device, instance, link
from foretell.limits import LIMITS, parse_json, parse_yaml, read_bytes, read_toml
from foretell.planner.agreed import read_agreement
from foretell.sources.config import config_file_function


def test_the_page_has_every_limit() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "limits.md").read_text()
    for name, most in LIMITS.items():
        assert f"| {name} | {most:,} |" in page


def test_values_are_counted_before_they_are_made() -> None:
    with pytest.raises(ValueError, match="at most 1,000,000, got 1,000,003"):
        parse_json(b"[" + b"[]," * 500_001 + b"]")
    with pytest.raises(ValueError, match="too deep"):
        parse_json(b"[" * 100_000)
    with pytest.raises(ValueError, match="NaN is no number"):
        parse_json(b"[NaN]")


def test_toml_whose_parser_would_take_minutes(tmp_path: Path) -> None:
    for text, message in (
        ("a." * 20_000 + "b = 1", "dots"),
        ("a = " + "[" * 5000, "too deep"),
        ("a = 1\n" * 20_000, "bytes"),
    ):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_toml(tmp_path / "a.toml")
    with pytest.raises(ValueError, match="no plain file"):
        read_bytes("/dev/zero", "bytes of a TOML file")


def changed(user_folder: Path, old: str, new: str) -> None:
    shipped = Path(__file__).parents[1] / "src/foretell/hardware/catalog/links/ib-400g.toml"
    assert old in shipped.read_text()
    (user_folder / "links" / "mine.toml").write_text(shipped.read_text().replace(old, new))


@pytest.mark.parametrize("latency", ["1e999 us", "1e-320 us", "inf us", "1.2.3 us", "0 us", "1e29 s"])
def test_numbers_of_a_catalog_can_be(user_folder: Path, latency: str) -> None:
    changed(user_folder, 'latency = "', f'latency = "{latency}" # ')
    with pytest.raises(CatalogError, match="mine"):
        link("mine")


def test_names_in_a_catalog_lead_nowhere_else(tmp_path: Path) -> None:
    for name in ("aws:..:..:devices:h200", "a" * 5000, "..", "a\0b"):
        for find in (device, instance):
            with pytest.raises(CatalogError, match="no "):
                find(name)


def test_very_long_clusters_are_refused_at_once() -> None:
    with pytest.raises(CatalogError, match="at most 1,000 characters, got 2,999,999"):
        Cluster.parse("+".join(["h200"] * 600_000))
    with pytest.raises(CatalogError, match="at most 1,048,576"):
        Cluster.parse("2x8xh200@ib-400g/" + "9" * 400)


@pytest.mark.parametrize(
    "text",
    ["[factors]\nhost = inf", "[factors]\nhost = 1e300", "[factors]\ndevice = nan", "[card]\nrows = 'x'", "name = 3",
     "[card]\nsources = [1]", "[for]\ndevice = 7", "[card]\nerror_after = inf", f"[factors]\nhost = {10**400}"],
)  # fmt: skip
def test_numbers_of_a_profile_can_be(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f"version = 1\n{text}\n")
    with pytest.raises(ProfileError):
        Profile.load(path)


def test_a_profile_of_an_impossible_name() -> None:
    with pytest.raises(InputError, match="no profile 'pppp"):
        Profile.load("p" * 5000)


@pytest.mark.parametrize("listed", ["[7]", "[[]]", "3.5", '{"a": 1}'])
def test_architectures_are_names(tmp_path: Path, listed: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"model_type": "llama", "architectures": {listed}}}')
    with pytest.raises(SourceError, match="architectures must be a list of names"):
        config_file_function(str(path))


def test_a_configuration_may_have_an_infinite_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}')
    assert callable(config_file_function(str(path)))


@pytest.mark.parametrize(
    "text", ["a: 2020-13-45", "a: " + "9" * 5000, "a: !!timestamp x", "a: !!int x", "a: &b [1]\nc: *b"]
)
def test_odd_yaml_is_refused_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (their words are their own)
        parse_yaml(text)
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(InputError, match="is no YAML"):
        read_agreement(tmp_path / "plan.yaml")


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no plain file"):
        read_agreement(Path("/dev/zero"))
    os.mkfifo(tmp_path / "arrays.safetensors")
    with pytest.raises(ValueError, match="no plain file"):
        load_arrays(tmp_path / "arrays.safetensors", version=1)
