"""What is known against this code and what it depends on: bandit, and pip-audit where its database can be reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
PATIENCE = 120  # seconds


def bandit() -> int:
    """What it is at least half sure of and not calls small: asserts and child processes are no findings here."""
    command = [sys.executable, "-m", "bandit", "--quiet", "-ll", "-ii", "-r", "src/foretell"]
    return subprocess.run(command, cwd=HERE, check=False).returncode


def pip_audit() -> int:
    """Of the pinned versions. Without its database nothing can be said, which is no failure."""
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--timeout=5"]
    command += ["--no-deps", "--disable-pip", "--requirement=constraints.txt"]
    try:
        said = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, timeout=PATIENCE)
        found = json.loads(said.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        print("pip-audit was left out: its database cannot be reached.")
        return 0
    skipped = [each for each in found if "skip_reason" in each]
    if len(skipped) == len(found):
        print("pip-audit was left out: its database knows nothing of these packages from here.")
        return 0
    wrong = [each for each in found if each.get("vulns")]
    for each in wrong:
        print(f"{each['name']} {each['version']}: {', '.join(v['id'] for v in each['vulns'])}")
    print(f"pip-audit: {len(found) - len(skipped)} packages looked up, {len(wrong)} with known vulnerabilities.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(bandit() or pip_audit())
