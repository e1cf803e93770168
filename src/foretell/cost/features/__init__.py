"""What an op looks like to a cost model: numbers drawn from its signature and from the device's published ones.

Each family of operators has one function that describes its signatures. Sizes are logarithms. Whatever can be relative
to the device is (tiles over its compute units, bytes over its cache, time at its peaks), so that a model fitted on one device
holds for the next one too.
"""

from foretell.cost.features.describe import LAUNCH_FLOOR, Description, describe
from foretell.cost.features.numbers import alignment, density, fill, inner_run, log
from foretell.cost.features.streams import walked

__all__ = ["LAUNCH_FLOOR", "Description", "alignment", "density", "describe", "fill", "inner_run", "log", "walked"]
