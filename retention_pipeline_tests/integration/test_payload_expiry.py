"""The parser of a payload's expiry: never raises, depends on no setting, and agrees with another one (SPEC E1, E3, E4)."""

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retention_pipeline_tests.databases import template
from retention_pipeline_tests.payloads import ephemeral
from retention_pipeline_tests.seams import module_database

__all__ = ["module_database", "template"]

MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
ASK = (
    "SELECT to_char(retention.payload_expiry(p::jsonb) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
    " FROM unnest(%s::text[]) WITH ORDINALITY AS x (p, n) ORDER BY n"
)


@pytest.fixture(scope="module")
def anybody(module_database):
    """A session in a zone and a style of dates that would change what a cast reads."""
    with module_database.superuser() as connection:
        connection.execute("SET TimeZone = 'America/St_Johns'")
        connection.execute("SET DateStyle = 'SQL, DMY'")
        yield connection


def asked(connection, payloads):
    return [row[0] for row in connection.execute(ASK, [payloads]).fetchall()]


instants = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001  offsets come beside it
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
)
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59)


@MANY
@given(st.lists(st.tuples(instants, offsets), min_size=1, max_size=40))
def test_every_instant_with_every_offset_is_read_to_the_microsecond(anybody, values):
    """E1, F13."""
    aware = [moment.replace(tzinfo=timezone(timedelta(minutes=away))) for moment, away in values]
    found = asked(anybody, [ephemeral(moment.isoformat()) for moment in aware])
    assert found == [
        (moment.replace(tzinfo=None) - moment.utcoffset()).isoformat(timespec="microseconds") for moment in aware
    ]


ISO = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(:\d\d([.,]\d{1,30})?)?([Zz]|[+-]\d\d(:?\d\d)?)", re.ASCII)
near = st.from_regex(ISO, fullmatch=True)
noise = st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def oracle(text):
    """What Python makes of it; None where it is no instant."""
    whole = re.fullmatch(r"(.{16})(?::(\d\d)(?:[.,](\d+))?)?([Zz]|[+-]\d\d(?::?\d\d)?)", text, re.ASCII)
    if whole is None or not ISO.fullmatch(text):
        return None
    front, second, fraction, away = whole.groups()
    away = "+00:00" if away in "Zz" else f"{away[:3]}:{away[3:].removeprefix(':') or '00'}"
    try:
        moment = datetime.fromisoformat(f"{front.upper()}:{second or '00'}{away}")
    except ValueError:
        return None
    if int(away[1:3]) > 23 or int(away[4:]) > 59:
        return None
    fraction = fraction or ""
    micros = int(fraction[:6].ljust(6, "0")) + bool(fraction[6:].strip("0"))
    shifted = moment.replace(tzinfo=None) - moment.utcoffset() + timedelta(microseconds=micros)
    return shifted.isoformat(timespec="microseconds")


@MANY
@given(st.lists(near | noise, min_size=1, max_size=40))
def test_a_text_that_is_nearly_an_instant_is_read_as_another_parser_reads_it(anybody, texts):
    """E3."""
    expected = []
    for text in texts:
        try:
            expected.append(oracle(text))
        except OverflowError:  # Python knows no year beyond these
            expected.append("beyond")
    found = asked(anybody, [ephemeral(text) for text in texts])
    for text, mine, theirs in zip(texts, expected, found, strict=True):
        assert mine in ("beyond", theirs), text


names = noise | st.sampled_from(["mode", "reason", "expiresAt"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | noise,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@MANY
@given(st.lists(anything, min_size=1, max_size=40))
def test_whatever_the_payload_holds_nothing_is_raised(anybody, values):
    """E4."""
    found = asked(anybody, [json.dumps(value) for value in values])
    assert len(found) == len(values)


def test_it_is_immutable_and_any_writer_may_keep_its_index(module_database):
    """E4: a writer of the platform's knows nothing of the product's schema."""
    with module_database.superuser() as admin:
        assert admin.execute("SELECT provolatile FROM pg_proc WHERE proname = 'payload_expiry'").fetchone() == ("i",)
        admin.execute("CREATE TABLE public.notes (id int, payload jsonb)")
        admin.execute("CREATE INDEX ON public.notes (retention.payload_expiry(payload))")
        admin.execute("CREATE ROLE stranger")
        admin.execute("GRANT ALL ON public.notes TO stranger")
        admin.execute("SET ROLE stranger")
        admin.execute("INSERT INTO public.notes VALUES (1, %s)", [ephemeral("2026-01-01T00:00:00Z")])
        admin.execute("RESET ROLE")
        admin.execute("DROP TABLE public.notes")
        admin.execute("DROP ROLE stranger")
