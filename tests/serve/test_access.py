"""Who may ask what: keys, teams, roles, rates, hosts, and what is written down of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import inspect, select

from foretell.errors import InputError
from foretell.serve.access import keys
from foretell.serve.access.guard import HEADERS
from foretell.serve.access.keys import make_key, revoke_key
from foretell.serve.access.rates import Rates
from foretell.serve.database.backup import back_up
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Audit, Base, Key
from foretell.serve.service import Service
from foretell.serve.settings import Settings
from tests.serve.conftest import Open, busy


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url)


def test_a_service_whose_last_key_was_revoked_is_closed(open_service: Open, tmp_path: Path) -> None:
    """Not open to whoever reaches its loopback, as through a proxy."""
    url = f"sqlite:///{tmp_path / 'keys.sqlite'}"
    database = Database(url)
    key = make_key(database, "team", "admin")
    revoke_key(database, key.split("_")[1])
    database.close()
    assert open_service(url).get("/v1/graphs").status_code == 401


def test_guesses_from_an_address_keep_no_valid_key_out(open_service: Open, tmp_path: Path) -> None:
    """Behind a proxy all callers have one address."""
    url = f"sqlite:///{tmp_path / 'keys.sqlite'}"
    database = Database(url)
    keys = [make_key(database, "team", "reader") for _ in range(8)]
    database.close()
    client = open_service(url, rate=1.0)
    guess = "ftl_" + "0" * 16 + "_" + "x" * 43
    seen = [client.get("/v1/graphs", headers={"Authorization": f"Bearer {guess}"}).status_code for _ in range(12)]
    assert seen[0] == 401
    assert seen[-1] == 429
    answers = [client.get("/v1/graphs", headers={"Authorization": f"Bearer {key}"}).status_code for key in keys]
    assert answers == [200] * 8


def test_the_migrations_make_the_tables_of_the_code(database: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        assert set(inspect(connection).get_table_names()) == {*Base.metadata.tables, "alembic_version"}


def test_a_team_never_reads_what_another_has(open_service: Open, database_url: str, graph_file: bytes) -> None:
    database = Database(database_url)
    one, other = (open_service(database_url, make_key(database, team, "admin")) for team in ("one", "other"))
    graph = one.post("/v1/graphs", content=graph_file).json()["hash"]
    forecast = one.post("/v1/forecasts", json={"graph": graph, "on": "h200"}).headers["foretell-forecast"]
    one.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": 0.1})
    for address in (f"/v1/graphs/{graph}", f"/v1/graphs/{graph}/file", f"/v1/forecasts/{forecast}"):
        assert one.get(address).status_code == 200
        assert other.get(address).status_code == 404
    assert other.post("/v1/forecasts", json={"graph": graph, "on": "h200"}).status_code == 404
    assert other.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": 0.1}).status_code == 404
    for address in ("/v1/graphs", "/v1/forecasts", "/v1/measurements"):
        assert len(one.get(address).json()) == 1
        assert other.get(address).json() == []
    other.post("/v1/graphs", content=graph_file)
    answer = other.post("/v1/forecasts", json={"graph": graph, "on": "h200"})
    assert answer.status_code == 200
    assert answer.headers["foretell-forecast"] != forecast


def test_keys_are_asked_for_and_can_be_taken_back(
    open_service: Open, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make_key(database, "one", "member")
    client = open_service(database_url, secret)
    assert client.get("/v1/devices").status_code == 200
    for header in ("", "Bearer", "Bearer nonsense", f"Bearer {secret[:-1]}x", f"Basic {secret}", "Bearer ftl_\x00_x"):
        answer = client.get("/v1/devices", headers={"Authorization": header})
        assert answer.status_code == 401, header
        assert answer.json()["next"]
    assert client.get("/healthz", headers={"Authorization": ""}).status_code == 200
    revoke_key(database, secret.split("_")[1])
    monkeypatch.setattr(keys, "_FRESH", 0.0)
    assert client.get("/v1/devices").status_code == 401


def test_the_database_has_no_secret(database: Database) -> None:
    secret = make_key(database, "one", "member")
    with database.reading() as session:
        kept = session.scalars(select(Key)).one()
    assert secret.split("_", 2)[2] not in str(vars(kept))


def test_a_reader_reads(open_service: Open, database: Database, database_url: str, graph_file: bytes) -> None:
    client = open_service(database_url, make_key(database, "one", "reader"))
    assert client.get("/v1/graphs").status_code == 200
    answer = client.post("/v1/graphs", content=graph_file)
    assert (answer.status_code, answer.json()["got"]) == (403, "reader")


def test_a_key_may_ask_so_often(open_service: Open, database: Database, database_url: str) -> None:
    client = open_service(database_url, make_key(database, "one", "reader"), rate=0.5)
    statuses = [client.get("/v1/graphs").status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    rates = Rates(2.0)
    assert [rates.take("a") for _ in range(8)] == [0.0] * 8
    assert rates.take("a") == pytest.approx(0.5)
    assert rates.take("b") == 0.0
    clock[0] = 0.5
    assert rates.take("a") == 0.0


def test_others_than_loopback_need_keys(tmp_path: object) -> None:
    with pytest.raises(InputError, match="no keys yet"):
        Service(Settings(host="0.0.0.0", database=f"sqlite:///{tmp_path}/a.sqlite"))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:127", ""])
def test_without_keys_other_names_are_refused(open_service: Open, host: str) -> None:
    """A page of another site can have its own name point here."""
    client = open_service()
    assert client.get("/healthz", headers={"Host": host}).status_code == 403
    for ours in ("localhost:8760", "[::1]:8760", "127.0.0.1"):
        assert client.get("/healthz", headers={"Host": ours}).status_code == 200


def test_pages_of_other_sites_may_not_ask(open_service: Open) -> None:
    client = open_service()
    assert client.get("/v1/devices", headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.get("/v1/devices", headers={"Origin": "http://127.0.0.1"}).status_code == 200


def test_browsers_are_told_what_they_may_do(open_service: Open) -> None:
    client = open_service()
    for address in ("/healthz", "/nosuch", "/v1/devices"):
        found = client.get(address).headers
        assert {name: found[name] for name in HEADERS} == HEADERS


def test_requests_are_written_down(open_service: Open, database: Database, database_url: str) -> None:
    secret = make_key(database, "one", "reader")
    client = open_service(database_url, secret)
    client.get("/v1/devices")
    client.post("/v1/forecasts", json={})
    client.get("/v1/devices", headers={"Authorization": ""})
    client.get("/healthz")
    client.app.state.service.audit.flush()  # type: ignore[attr-defined]
    with database.reading() as session:
        rows = [(row.what, row.status, row.key_id) for row in session.scalars(select(Audit).order_by(Audit.id))]
    name = secret.split("_")[1]
    assert rows == [("GET /v1/devices", 200, name), ("POST /v1/forecasts", 403, name), ("GET /v1/devices", 401, None)]


def test_the_audit_log_waits_for_its_database(
    open_service: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends the thread that writes it, either."""
    monkeypatch.setattr("foretell.serve.database.connect._PATIENCE", 0.1)
    url = f"sqlite:///{tmp_path / 'audit.sqlite'}"
    service = open_service(url).app.state.service  # type: ignore[attr-defined]
    service.audit.add(None, "here", "GET /v1/devices", 200)
    with busy(url):
        service.audit.flush()
    service.audit.flush()
    with service.database.reading() as session:
        assert [row.what for row in session.scalars(select(Audit))] == ["GET /v1/devices"]
    assert service.audit.dropped == 0
    service.audit.add(None, "\udc80", "GET /v1/devices", 200)  # what no database takes
    service.audit.flush()
    assert service.audit.dropped == 1


def test_a_backup_replaces_no_device(database: Database, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no plain file"):
        back_up(database, tmp_path)  # as /dev/full, which root could replace by a file
