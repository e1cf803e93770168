"""Schemathesis on the service: `python -m tests.fuzz.openapi --examples 200`; exits with 1 where an answer is not as described.

Every operation of /openapi.json is asked with requests that follow its description and requests that do not, with SQLite and
with a worker in this process. An answer must be one that the description has, and no crash.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

import hypothesis
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.fuzz.targets.service import client

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
LEFT_OUT = ("/v1/jobs/{id}/events",)  # it does not end while its job does not


def check(examples: int, seed: int) -> tuple[Counter[int], list[str]]:
    """How many requests were answered with each status, and what was wrong."""
    asks, _ = client()
    schema = schemathesis.openapi.from_asgi("/openapi.json", asks.app, headers={"Host": "127.0.0.1"})
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in LEFT_OUT:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _check_one(operation.as_strategy(generation_mode=mode), examples, seed, statuses)
            except hypothesis.errors.Unsatisfiable:  # nothing can be wrong with a request without parts
                continue
            except Exception as error:
                wrong.append(f"{operation.method.upper()} {operation.path}: {error}")
    return statuses, wrong


def _check_one(requests: Any, examples: int, seed: int, statuses: Counter[int]) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )  # fmt: skip
    @hypothesis.given(requests)
    def ask(case: Any) -> None:
        answer = case.call(headers={"Host": "127.0.0.1"})
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    ask()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=200, help="of each operation, right and wrong ones alike")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    began = time.monotonic()
    statuses, wrong = check(asked.examples, asked.seed)
    print(
        f"{sum(statuses.values()):,} requests in {time.monotonic() - began:.0f} s, by status: {dict(sorted(statuses.items()))}"
    )
    print("\n\n".join(wrong) or "All answers are as /openapi.json says.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
