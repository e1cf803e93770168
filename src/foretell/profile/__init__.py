"""What makes a forecast fit one machine, cluster or trainer: a `Profile`, its parts, and the file it is kept in."""

from foretell.profile.families import ARITHMETIC, FAMILIES, KINDS, family_of, plain
from foretell.profile.file import (
    ARRAYS,
    FACTORS,
    READABLE,
    SUFFIX,
    VERSION,
    Profile,
    files_of,
    folders,
    network_of,
    profile_files,
)
from foretell.profile.operators import Operators
from foretell.profile.parts import AS_LISTED, CROWDED, WIDEST, Card, Intervals, Links, MemoryFactors, Purpose
from foretell.profile.residuals import Residuals

__all__ = [
    "ARITHMETIC",
    "ARRAYS",
    "AS_LISTED",
    "CROWDED",
    "FACTORS",
    "FAMILIES",
    "KINDS",
    "READABLE",
    "SUFFIX",
    "VERSION",
    "WIDEST",
    "Card",
    "Intervals",
    "Links",
    "MemoryFactors",
    "Operators",
    "Profile",
    "Purpose",
    "Residuals",
    "family_of",
    "files_of",
    "folders",
    "network_of",
    "plain",
    "profile_files",
]
