"""Whatever value PostgreSQL can keep comes back as it was; what can't come back is refused by name (SPEC A1, A17, F10, F12, F19)."""

from dataclasses import dataclass, replace
from importlib import resources

import psycopg
import pytest

from retention_pipeline.catalog.loader import load
from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.model.outcome import Outcome
from retention_pipeline.postgres import migrate
from retention_pipeline.postgres.content import EPHEMERAL_MARKER
from retention_pipeline.postgres.records import PostgresRecords
from retention_pipeline.postgres.restore import PostgresRestorer
from retention_pipeline.postgres.source import PostgresSource
from retention_pipeline.stages import restoration
from retention_pipeline_tests.rows import Platform
from retention_pipeline_tests.worlds import Bench

TYPES = """
CREATE TYPE nucleus."Mood of 'day'" AS ENUM ('fine', 'so, "so"', '', 'Ünicode');
CREATE DOMAIN nucleus.positive AS numeric CHECK (VALUE > 0);
CREATE DOMAIN nucleus.code AS character(5);
CREATE DOMAIN nucleus.open_code AS bpchar;
CREATE DOMAIN nucleus.many AS integer[];
CREATE TYPE nucleus.pair AS (left_one text, "Right" timestamptz, note bpchar, raw bytea);
CREATE TYPE nucleus.nested AS (inner_pair nucleus.pair, list nucleus.pair[]);
CREATE TYPE nucleus.span AS RANGE (subtype = float8);
"""
HARD = {
    "timestamptz": ["infinity", "-infinity", "17026-01-01 00:00:00.000001+00", "0044-03-15 12:00:00 BC"],
    "timestamptz(3)": ["2026-01-01 00:00:00.345+00"],
    "timestamp": ["infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-01 BC"],
    "date": ["infinity", "-infinity", "5874897-12-31", "0001-01-01 BC"],
    "time": ["24:00:00", "00:00:00.000001"],
    "timetz": ["24:00:00-15:59:59", "12:00:00.5+05:45"],
    "interval": ["178000000 years", "-1 mon +2 days -00:00:00.000001", "1 day -24:00:00", "0"],
    "interval day to second(3)": ["3 days 04:05:06.789"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1234567890123456789012345678901234567890.0987654321", "0.000", "-0"],
    "numeric(40,20)": ["12345678901234567890.12345678901234567890"],
    "numeric(3,-2)": ["12300"],
    "float8": ["-0", "5e-324", "NaN", "Infinity", "-Infinity", "0.1", "1.7976931348623157e308", "0.30000000000000004"],
    "float4": ["-0", "1e-45", "NaN", "0.1", "3.4028235e38"],
    "smallint": ["-32768"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "9007199254740993"],
    "json": [
        '{"a": 1, "a": 2,   "b":[1 ,2]}',
        '"\\u0000"',
        '"\\ud800"',
        "1.0000000000000000000000000001e400",
        "null",
        '  {"\\u00e9":"é"}\n',
    ],
    "jsonb": ['{"b": 1, "a": 1.10}', "null", '"\\ud83d\\ude00"', "1e400"],
    "jsonpath": ['$."a"[*] ? (@ > 1.0)'],
    "text": ["", "a\\b\n\r\t\x01\x7f\x1f", "\ufeff\ufffe\U0010ffff", "NULL", "\\N", "%s {} %%", "  ", "e\u0301"],
    "varchar(3)": ["a  ", "äöü"],
    "character(5)": ["ab", "     ", ""],
    "bpchar": ["ab   ", "   ", ""],
    "character(3)[]": ['{a,NULL,"b  "}'],
    "bpchar[]": ['{"a  ",b}'],
    '"char"': ["x", "\\377", ""],
    "name": ['odd " name'],
    "bytea": ["\\x", "\\x00ff5c27", "\\x" + "00" * 3000],
    "boolean": ["f"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "bit(5)": ["10101"],
    "bit varying": ["", "101"],
    "varbit(9)[]": ["{1,NULL,000}"],
    "inet": ["192.168.1.5", "192.168.1.5/24", "::1", "::ffff:1.2.3.4/128"],
    "cidr": ["10.0.0.0/8", "1.2.3.4/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["-92233720368547758.08", "12.3"],
    "tsvector": ["'a b':1A,2B 'it''s':3 '\\\\':4", ""],
    "tsquery": ["'a' & !('b' | 'c d':*A) <2> 'e'"],
    "xml": ["<a b='1'>&lt; é</a>", "text <b/> more", "<?xml version='1.0'?><a/>"],
    "point": ["(0.1,-0)", "(NaN,Infinity)"],
    "line": ["{1,2,3.3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(2,2),(1,1)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "polygon": ["((0,0),(1,1),(2,0.1))"],
    "circle": ["<(0.1,0.2),0.3>"],
    "integer[]": ["{}", "{NULL,1}", "[-2:0]={1,2,3}", "[0:1][3:4]={{1,2},{3,4}}", "{{{1}}}"],
    "text[]": ['{NULL,"NULL","",a b,"q\\"\\\\,{}"}', "{{a,b},{c,NULL}}"],
    "timestamptz[]": ['{infinity,"0044-03-15 12:00:00+00 BC",NULL}'],
    "jsonb[]": ['{"{\\"a\\": [1]}",NULL}'],
    "float8[]": ["{-0,NaN,5e-324}"],
    "int4range": ["empty", "[1,5)", "(,)", "[1,)"],
    "numrange": ["(1.10,2.20]", "[NaN,NaN]", "(,Infinity)"],
    "tstzrange": ["[-infinity,infinity]", '["0044-03-15 BC",)'],
    "daterange": ["[2026-01-01,infinity)"],
    "int8multirange": ["{}", "{[1,3),[7,9)}"],
    "nummultirange": ["{(,1.0),[2.00,)}"],
    "tstzrange[]": ['{"[2026-01-01,2026-02-01)",empty,NULL}'],
    "nucleus.span": ["[-0,5e-324]", "(,NaN)"],
    "nucleus.\"Mood of 'day'\"": ['so, "so"', "", "Ünicode"],
    "nucleus.\"Mood of 'day'\"[]": ['{fine,NULL,"so, \\"so\\""}'],
    "nucleus.positive": ["NaN", "0.10"],
    "nucleus.code": ["ab", ""],
    "nucleus.open_code": ["ab  ", "  "],
    "nucleus.open_code[]": ['{"ab  ",NULL}'],
    "nucleus.many": ["[2:3]={1,NULL}"],
    "nucleus.pair": ["(,,,)", '("a ""q"", b\\\\","0044-03-15 12:00:00+00 BC","x  ","\\\\x00ff")'],
    "nucleus.pair[]": ['{"(a,infinity,,)",NULL}'],
    "nucleus.nested": ['("(a,,,)","{""(b,,,)"",NULL}")', "(,)"],
    "oid": ["4294967295"],
    "pg_lsn": ["FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15"],
    "xid8": ["18446744073709551615"],
    "regclass": ["nucleus.workflow_contexts", "0"],
    "tid": ["(4294967295,1)"],
}
COLUMNS = {f"h{number}": kind for number, kind in enumerate(HARD)}


def refit(bench):
    """What an operator does after the platform changed its tables: functions and privileges of the new shape."""
    migrate.migrate(bench.database.owner_url, load())
    bench.world.source._shape = None


def alter(bench, *statements):
    with bench.database.superuser() as owner:
        for statement in statements:
            owner.execute(statement)
    refit(bench)


def printed(bench, platform, instance):
    """All tables as COPY prints them: the exact bits of every value."""
    with bench.database.superuser() as connection:
        connection.execute("SET extra_float_digits = 3; SET TimeZone = 'UTC'")
        lines = []
        for table, column in (("instances", "id"), ("terminal_epochs", "instance_id"), ("contexts", "instance_id")):
            query = f"COPY (SELECT * FROM nucleus.workflow_{table} AS t WHERE {column} = '{instance}' ORDER BY t::text) TO STDOUT"
            with connection.cursor().copy(query) as copy:
                lines += [bytes(line) for line in copy]
        return lines


def picture(bench, platform, instance):
    return bench.rows(platform, instance), printed(bench, platform, instance)


def archived(bench, platform, instance):
    """The newest archive of an instance, opened."""
    found = next(a for a in bench.world.records.archives(platform.tenant, limit=200) if a.instance == instance)
    return found, restoration.open_archive(
        bench.store, restoration.restorable(found), lambda key_id: bench.keys.find(platform.tenant, key_id)
    )


def put_back(bench, platform, attempt, manifest):
    approval = bench.approve(platform, job="restore", subject=attempt.id)
    return restoration.into_database(
        bench.world.records, bench.restorer, attempt, manifest, approval_id=approval, run="restoring"
    )


def away(bench, platform, instance):
    report = bench.reconcile(platform).report
    assert (report.outcome, report.counts.deleted, report.counts.failures) == (Outcome.COMPLETED, 1, {})
    assert not platform.exists(instance)
    return archived(bench, platform, instance)


def away_and_back(bench, platform, instance):
    before = picture(bench, platform, instance)
    attempt, manifest = away(bench, platform, instance)
    restored = put_back(bench, platform, attempt, manifest)
    assert (restored.identical, restored.instance) == (True, instance)
    assert picture(bench, platform, instance) == before
    return attempt, manifest


# -- values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hard:
    """One instance for each type, archived and gone."""

    bench: Bench
    platform: Platform
    instances: dict
    before: dict


@pytest.fixture(scope="module")
def hard(shared):
    types = dict(COLUMNS)
    if not has_xml(shared):
        types = {column: kind for column, kind in types.items() if kind != "xml"}
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in types.items())
    alter(shared, TYPES, f"ALTER TABLE nucleus.workflow_contexts {added}")
    platform = shared.platform()
    instances = {}
    for column, kind in types.items():
        instances[column] = platform.add(contexts=0)
        for value in [*HARD[kind], None]:
            platform.child("contexts", instances[column], name=f"{value!r:.40}", **{column: value})
    before = {column: picture(shared, platform, instance) for column, instance in instances.items()}
    report = shared.reconcile(platform).report
    assert report.counts.failures == {}
    assert (report.outcome, report.counts.deleted) == (Outcome.COMPLETED, len(types))
    return Hard(shared, platform, instances, before)


def has_xml(bench):
    with bench.database.superuser() as connection:
        try:
            connection.execute("SELECT '<a/>'::xml")
        except psycopg.errors.FeatureNotSupported:
            return False
    return True


@pytest.mark.parametrize("column", COLUMNS, ids=list(COLUMNS.values()))
def test_a_hard_value_comes_back_as_it_was(hard, column):
    """A1, A17, F10."""
    if column not in hard.instances:
        pytest.skip("this server was built without XML")
    instance = hard.instances[column]
    assert not hard.platform.exists(instance)
    assert put_back(hard.bench, hard.platform, *archived(hard.bench, hard.platform, instance)).identical
    assert picture(hard.bench, hard.platform, instance) == hard.before[column]


# -- columns that the database fills itself ------------------------------------------------------------------------------


def test_generated_and_identity_columns_come_back_with_their_own_values(bench):
    """A17, F10: stored and virtual ones; an identity that is always generated keeps its number."""
    alter(
        bench,
        "ALTER TABLE nucleus.workflow_contexts ADD COLUMN twice text GENERATED ALWAYS AS (name || name) STORED,"
        " ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY (START 41),"
        " ADD COLUMN other integer GENERATED BY DEFAULT AS IDENTITY, ADD COLUMN plain text DEFAULT 'a default'",
    )
    platform = bench.platform()
    instance = platform.add()
    platform.child("contexts", instance, name="no default", plain=None)
    platform.run(
        "INSERT INTO nucleus.workflow_executions (id, tenant_id, instance_id, status, started_at, finished_at)"
        " VALUES (gen_random_uuid(), %s, %s, 'failed', '1000-01-01 BC', '2026-01-01 00:00:00.000001')",
        platform.tenant,
        instance,
    )
    away_and_back(bench, platform, instance)
    assert platform.value("SELECT min(number) FROM nucleus.workflow_contexts WHERE instance_id = %s", instance) == 41


MIRRORS = {
    "generated": ("text GENERATED ALWAYS AS (payload ->> 'text') STORED", None, None),
    "integer": ("integer", 5, None),
    "short": ("varchar(5)", "5", None),
    "array": ("text[]", ["5"], None),
    "text": ("text", "5", EPHEMERAL_MARKER),
}


@pytest.mark.parametrize("kind", MIRRORS)
def test_a_mirror_of_any_type_is_neither_archived_nor_in_the_way_of_a_restore(bench, tmp_path, kind):
    """A1, F12: the marker stands in its place, or nothing does where its type has no room for it."""
    declared, value, afterwards = MIRRORS[kind]
    named = tmp_path / "catalog.yaml"
    shipped = resources.files("retention_pipeline.catalog").joinpath("workflow_instances.yaml").read_text("utf-8")
    named.write_text(shipped.replace("mirrors: [data]", "mirrors: [data, mirrored]"), "utf-8")
    catalog = load(named)
    with bench.database.superuser() as owner:
        owner.execute(f"ALTER TABLE nucleus.workflow_contexts ADD COLUMN mirrored {declared}")
    migrate.migrate(bench.database.owner_url, catalog)
    bench.world = replace(
        bench.world,
        source=PostgresSource(session=bench.session(), catalog=catalog),
        records=PostgresRecords(session=bench.session(), catalog=catalog),
    )
    bench.restorer = PostgresRestorer(session=bench.session(), catalog=catalog)

    platform = bench.platform()
    instance = platform.add(contexts=1)
    extra = {} if value is None else {"mirrored": value}
    payload = '{"mode": "ephemeral_hosted", "text": "55555"}'
    platform.child("contexts", instance, name="short-lived", payload=payload, **extra)
    platform.child("contexts", instance, name="lasting", payload='{"text": "77777"}', **extra)
    lasting = "SELECT t::text FROM nucleus.workflow_contexts AS t WHERE instance_id = %s AND name = 'lasting'"
    before = platform.value(lasting, instance)
    attempt, manifest = away(bench, platform, instance)
    assert "55555" not in repr(manifest)
    assert put_back(bench, platform, attempt, manifest).identical
    assert platform.value(lasting, instance) == before
    mirrored = "SELECT mirrored::text FROM nucleus.workflow_contexts WHERE instance_id = %s AND name = 'short-lived'"
    assert platform.value(mirrored, instance) == afterwards
    assert bench.restorer.is_back(platform.tenant, attempt.id, manifest)


# -- what stands in the way ---------------------------------------------------------------------------------------------


def refused(bench, platform, attempt, manifest, *words):
    with pytest.raises(RetentionError) as caught:
        put_back(bench, platform, attempt, manifest)
    assert caught.value.code is Code.RESTORE_CONFLICT
    for word in words:
        assert word in str(caught.value)
    assert platform.value("SELECT count(*) FROM retention.restorations WHERE tenant_id = %s", platform.tenant) == 0


def test_a_childs_key_that_is_taken_is_named(shared):
    """F19: whoever has it by now."""
    platform, other = shared.platform(), shared.platform()
    instance = platform.add(contexts=0)
    child = platform.child("contexts", instance, name="first")
    attempt, manifest = away(shared, platform, instance)
    other.child("contexts", other.add(), name="taken", id=child)
    refused(shared, platform, attempt, manifest, "nucleus.workflow_contexts", "23505")
    assert not platform.exists(instance)


def test_an_id_that_another_tenant_has_by_now_is_named(shared):
    """A17, F19: row-level security hides it, the key does not."""
    platform, other = shared.platform(), shared.platform()
    instance = platform.add()
    attempt, manifest = away(shared, platform, instance)
    other.run(
        "INSERT INTO nucleus.workflow_instances (id, tenant_id, workflow_id, state) VALUES (%s, %s, %s, 'running')",
        instance,
        other.tenant,
        other.workflow,
    )
    refused(shared, platform, attempt, manifest, "nucleus.workflow_instances", "23505")
    assert not shared.restorer.is_back(platform.tenant, attempt.id, manifest)


def test_a_restored_instance_that_was_changed_since_is_not_back(shared):
    """A17."""
    platform = shared.platform()
    instance = platform.add()
    attempt, manifest = away_and_back(shared, platform, instance)
    assert shared.restorer.is_back(platform.tenant, attempt.id, manifest)
    platform.run("UPDATE nucleus.workflow_instances SET title = 'another' WHERE id = %s", instance)
    assert not shared.restorer.is_back(platform.tenant, attempt.id, manifest)
    with pytest.raises(RetentionError) as caught:
        put_back(shared, platform, attempt, manifest)
    assert "an instance with this id exists" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("NEW.name := upper(NEW.name); RETURN NEW;", "does not read back"),
        ("RETURN NULL;", "does not read back"),
        ("RAISE 'never'; RETURN NEW;", "P0001"),
    ],
    ids=["alters", "swallows", "refuses"],
)
def test_a_trigger_that_meddles_with_a_restore_ends_it(bench, body, word):
    """A17: only what reads back as it was archived is kept."""
    platform = bench.platform()
    instance = platform.add()
    attempt, manifest = away(bench, platform, instance)
    alter(
        bench,
        f"CREATE FUNCTION nucleus.meddle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$",
        "CREATE TRIGGER meddle BEFORE INSERT ON nucleus.workflow_contexts FOR EACH ROW EXECUTE FUNCTION nucleus.meddle()",
    )
    refused(bench, platform, attempt, manifest, "nucleus.workflow_contexts", word)
    assert not platform.exists(instance)


def test_a_value_that_its_type_no_longer_admits_is_named(bench):
    """F19: the enum's label was renamed, the domain's rule made stricter; the types' names are the same."""
    alter(
        bench,
        "CREATE TYPE nucleus.colour AS ENUM ('red', 'green')",
        "CREATE DOMAIN nucleus.small AS integer",
        "ALTER TABLE nucleus.workflow_contexts ADD COLUMN colour nucleus.colour, ADD COLUMN small nucleus.small",
    )
    platform = bench.platform()
    platform.child("contexts", (first := platform.add(contexts=0)), name="c", colour="red")
    of_first = away(bench, platform, first)
    platform.child("contexts", (second := platform.add(contexts=0)), name="s", small=5)
    of_second = away(bench, platform, second)
    alter(
        bench,
        "ALTER TYPE nucleus.colour RENAME VALUE 'red' TO 'blue'",
        "ALTER DOMAIN nucleus.small ADD CONSTRAINT fewer CHECK (VALUE < 5)",
    )
    refused(bench, platform, *of_first, "nucleus.workflow_contexts", "22P02")
    refused(bench, platform, *of_second, "nucleus.workflow_contexts", "23514")
    assert not platform.exists(first)
    assert not platform.exists(second)
