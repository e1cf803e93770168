"""Whether a profile is of the devices that are forecast: what was fitted on one says little of another."""

from __future__ import annotations

from foretell.errors import CatalogError
from foretell.graph import Caveat
from foretell.hardware import Cluster, device
from foretell.profile import Profile


def profile_of_other_devices(profile: Profile, cluster: Cluster) -> Caveat | None:
    """None where a profile says no device of the catalog, or one that is there."""
    if not profile.purpose.device:
        return None
    try:
        made_for = device(profile.purpose.device).name
    except CatalogError:
        return None  # free text
    others = [kind.name for kind in cluster.device_kinds if kind.name != made_for]
    if not others:
        return None
    versions = f" with {profile.purpose.versions}" * bool(profile.purpose.versions)
    text = (
        f"Profile {profile.name!r} was made on {made_for}{versions}, and {', '.join(others)} is forecast with its factors: "
        "nothing validates them there. Leave it out, or adapt one on this device."
    )
    return Caveat("profile-of-other-devices", text)
