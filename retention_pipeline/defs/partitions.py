"""Tenants as partitions: keys are the platform's own tenant ids, opaque and immutable."""

import dagster as dg

TENANTS = dg.DynamicPartitionsDefinition(name="tenants")
