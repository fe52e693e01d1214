-- Audit events sealed in keyed blocks.

SELECT;
