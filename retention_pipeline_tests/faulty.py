"""Stores that lie, each around any other store (F1, F2)."""

from contextlib import contextmanager
from hashlib import sha256 as new_sha256

from retention_pipeline.errors import Code, Unavailable
from retention_pipeline.model.ids import ObjectVersion


def lost():
    return Unavailable(Code.STORE_UNAVAILABLE, "The answer was lost.", remedy="Try again.")


class Around:
    """Passes everything on."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Dropping(Around):
    """Says that it stored, and did not."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        return ObjectVersion("0" * 32)


class Altering(Around):
    """Stores what `alter` makes of the bytes, with a checksum that fits."""

    def __init__(self, inner, alter):
        super().__init__(inner)
        self.alter = alter

    def put_once(self, key, body, *, sha256, lock_until=None):
        altered = self.alter(body)
        return self.inner.put_once(key, altered, sha256=new_sha256(altered).digest(), lock_until=lock_until)


def truncated(body):
    return body[: len(body) // 2]


def flipped(body):
    middle = len(body) // 2
    return body[:middle] + bytes((body[middle] ^ 1,)) + body[middle + 1 :]


class Occupied(Around):
    """Somebody else's bytes lie under every key already."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        if not self.inner.versions(key):
            self.inner.put_once(key, b"somebody else's", sha256=new_sha256(b"somebody else's").digest())
        return self.inner.put_once(key, body, sha256=sha256, lock_until=lock_until)


class LosingAnswers(Around):
    """Stores, and loses the answer."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        self.inner.put_once(key, body, sha256=sha256, lock_until=lock_until)
        raise lost()


class Overwriting(Around):
    """Replaces what is there, as stores do that don't know conditional writes."""

    def put_once(self, key, body, *, sha256, lock_until=None):
        for found in self.inner.versions(key):
            self.inner.delete(key, found.version)
        return self.inner.put_once(key, body, sha256=sha256, lock_until=lock_until)


class FlippingReads(Around):
    """Stores well, and reads back one bit off."""

    @contextmanager
    def read(self, key, version):
        with self.inner.read(key, version) as stream:
            yield _Flipped(stream)


class CuttingReads(Around):
    """Loses the connection after some bytes."""

    def __init__(self, inner, after=100):
        super().__init__(inner)
        self.after = after

    @contextmanager
    def read(self, key, version):
        with self.inner.read(key, version) as stream:
            yield _Cut(stream, self.after)


class _Flipped:
    def __init__(self, stream):
        self.stream = stream

    def read(self, size, /):
        data = self.stream.read(size)
        return flipped(data) if data else data


class _Cut:
    def __init__(self, stream, left):
        self.stream, self.left = stream, left

    def read(self, size, /):
        if not self.left:
            raise lost()
        data = self.stream.read(min(size, self.left))
        self.left -= len(data)
        return data
