"""An operator's desk: the command line in this process, against a database and a home of the test's own."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retention_pipeline.cli.main import cli
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline_tests.databases import Database
from retention_pipeline_tests.rows import Platform


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a call gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The stable code of a call that failed."""
        return self.json["error"]["code"]


@dataclass(kw_only=True)
class Desk:
    """Where somebody sits who has one login."""

    database: Database
    home: Path
    platform: Platform
    alias: str

    @property
    def keyring(self) -> Path:
        return self.home / "keyring.json"

    def environment(self, login: str) -> dict[str, str]:
        return {
            "RETENTION_HOME": str(self.home),
            "RETENTION_OPERATOR_URL": self.database.url(login),
            "RETENTION_WORKER_URL": self.database.worker_url,
        }

    def call(
        self,
        *words: str,
        login: str = "admin",
        tenant: str | None = "",
        text: str | None = None,
        as_json: bool = True,
        **environment: str | None,
    ) -> Answer:
        """One call; `tenant=None` names none, and an empty one names the desk's own."""
        front = ["--json"] if as_json else []
        if tenant is not None:
            front += ["--tenant", tenant or self.alias]
        result = CliRunner().invoke(
            cli, [*front, *words], input=text, env={**self.environment(login), **environment}, prog_name="retention"
        )
        return Answer(code=result.exit_code, out=result.stdout, err=result.stderr)

    def done(self, *words: str, **how: Any) -> dict[str, Any]:
        """A call that must succeed."""
        answer = self.call(*words, **how)
        assert answer.code == 0, answer.out + answer.err
        return answer.json

    def audit(self, kind: str) -> list[dict[str, Any]]:
        """Audit events of one kind, oldest first, over all tenants."""
        found = self.platform.connection.execute(
            "SELECT to_jsonb(e) FROM retention.audit_events AS e WHERE kind = %s ORDER BY id", [kind]
        ).fetchall()
        return [row[0] for row in found]


@pytest.fixture
def desk(database: Database, tmp_path: Path) -> Desk:
    home = tmp_path / "home"
    (home / "archives").mkdir(parents=True)
    LocalKeyring.create(home / "keyring.json")
    platform = Platform(database=database)
    alias = platform.value("SELECT alias FROM nucleus.tenants WHERE id = %s", platform.tenant)
    return Desk(database=database, home=home, platform=platform, alias=str(alias))
