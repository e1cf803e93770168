"""What a plan takes at least, in time and in memory, from a few numbers of its step: most plans are never simulated.

A replica is priced once, alone on the few devices that share it; what plans with more devices add to it (the fill of a
pipeline, gradients, gathered parameters) is arithmetic. Every number leaves out something that the simulator counts.
"""

from typing import Final

SLACK: Final = 0.985  # ops are priced with their neighbours, which plans change a little; the rest are bounds
