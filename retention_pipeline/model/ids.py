"""Identifiers with types, so that a tenant's id is never passed where an instance's belongs."""

from typing import NewType

TenantId = NewType("TenantId", str)
"""A tenant's immutable id, as PostgreSQL prints it."""

InstanceId = NewType("InstanceId", str)
"""An instance's primary key, as PostgreSQL prints it."""

AttemptId = NewType("AttemptId", str)
"""The id of one try to archive one epoch of one instance; once its object is verified, the archive's id."""

ObjectKey = NewType("ObjectKey", str)
"""An object's random name below a profile's prefix."""

ObjectVersion = NewType("ObjectVersion", str)
"""What a provider calls one immutable version of an object; opaque."""
