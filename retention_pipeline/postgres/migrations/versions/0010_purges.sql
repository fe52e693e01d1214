-- What runs saw of the periods of purges.

-- A shortened period is not believed at once (G8): for a time, the longest that was in effect within it goes on to apply.
CREATE TABLE retention.horizon_observations (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  dataset text NOT NULL,
  table_name text NOT NULL,
  days integer NOT NULL CHECK (days > 0),
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.horizon_observations (tenant_id, dataset, table_name, id DESC);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.horizon_observations
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.horizon_observations
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();
ALTER TABLE retention.horizon_observations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_own_tenant ON retention.horizon_observations TO retention_worker
  USING (tenant_id = (SELECT retention.current_tenant()));
CREATE POLICY operator_reads ON retention.horizon_observations FOR SELECT TO retention_operator
  USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:read')));
CREATE POLICY counter_all_tenants ON retention.horizon_observations FOR SELECT TO retention_counter USING (true);
-- When it was seen is the clock's to say.
GRANT SELECT, INSERT (tenant_id, dataset, table_name, days) ON retention.horizon_observations TO retention_worker;
GRANT SELECT ON retention.horizon_observations TO retention_operator;
