-- Positions, receipts, what is set aside, and the jobs that sweeps are approved as.

-- A sweep's job is named after its dataset, which an operator's own catalog may name: `sweep:submission_ledgers`.
ALTER TABLE retention.approvals DROP CONSTRAINT approvals_job_check;
ALTER TABLE retention.approvals ADD CONSTRAINT approvals_job_check CHECK (job IN (
  'reconcile', 'archive', 'restore', 'expire', 'recovery_cancel', 'store_detach', 'scrub_remove', 'join_request')
  OR job ~ '^sweep:[a-z][a-z0-9_]{0,49}$');
ALTER TABLE retention.approvals DROP CONSTRAINT approvals_bounded;
ALTER TABLE retention.approvals DROP CONSTRAINT approvals_of_one;
ALTER TABLE retention.approvals
  ADD CONSTRAINT approvals_bounded CHECK (
    max_items <= CASE WHEN job LIKE 'sweep:%' THEN 50000 ELSE 10000 END
    AND expires_at <= at + CASE kind WHEN 'single_use' THEN interval '168 hours' ELSE interval '8784 hours' END) NOT VALID,
  ADD CONSTRAINT approvals_of_one CHECK (
    (subject IS NOT NULL) = (job IN ('archive', 'restore', 'recovery_cancel', 'store_detach', 'join_request'))
    AND (subject IS NULL OR kind = 'single_use')) NOT VALID;

CREATE OR REPLACE FUNCTION retention.approval_permission(job text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN job LIKE 'sweep:%' THEN 'workflow_retention:reconcile' ELSE CASE job
    WHEN 'reconcile' THEN 'workflow_retention:reconcile' WHEN 'archive' THEN 'workflow_retention:archive'
    WHEN 'restore' THEN 'workflow_retention:restore' WHEN 'expire' THEN 'workflow_retention:archive'
    WHEN 'recovery_cancel' THEN 'workflow_recovery:cancel' WHEN 'store_detach' THEN 'workflow_retention:archive'
    WHEN 'scrub_remove' THEN 'workflow_retention:archive' WHEN 'join_request' THEN 'workflow_retention:reconcile' END END
$$;

CREATE TABLE retention.sweep_positions (  -- the next batch of a table begins behind this row
  tenant_id text NOT NULL,
  dataset text NOT NULL,
  table_name text NOT NULL,
  place jsonb,  -- the last row that was looked at: its instant and its key, as text; NULL is the beginning
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, dataset, table_name)
);

CREATE TABLE retention.sweep_set_asides (  -- a row that failed alone: others go on, it waits
  tenant_id text NOT NULL,
  dataset text NOT NULL,
  table_name text NOT NULL,
  row_key text NOT NULL,
  code text NOT NULL,
  failures integer NOT NULL DEFAULT 1,
  not_before timestamptz NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, dataset, table_name, row_key)
);

CREATE TABLE retention.sweep_receipts (  -- what one batch did; its audit event stands beside it
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  dataset text NOT NULL,
  table_name text NOT NULL,
  verb text NOT NULL CHECK (verb IN ('cleared', 'purged', 'shelved')),
  run text NOT NULL,
  approval_id uuid NOT NULL REFERENCES retention.approvals,
  items bigint NOT NULL CHECK (items > 0),
  details jsonb NOT NULL DEFAULT '{}',  -- counts and instants, never a row's data (A16)
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.sweep_receipts (tenant_id, dataset, id DESC);
CREATE INDEX ON retention.sweep_receipts (approval_id, run);

CREATE TABLE retention.sweep_rounds (  -- which tenant a pass over all of them handled last (L1)
  dataset text PRIMARY KEY,
  last_tenant text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Whether this tenant's run of a job is under way: it has taken an approval that is still good. A source row's own policy asks
-- this, once for each statement, so that the worker's login alone changes nothing (G4).
CREATE FUNCTION retention.sweeping(job text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (
    SELECT FROM retention.approvals AS a JOIN retention.approval_uses AS u ON u.approval_id = a.id AND u.tenant_id = a.tenant_id
    WHERE a.tenant_id = retention.current_tenant() AND a.job = sweeping.job AND a.expires_at > clock_timestamp()
      AND u.at > clock_timestamp() - interval '1 hour'
      AND retention.principal_permitted(a.actor, retention.approval_permission(a.job)))
$$;
REVOKE EXECUTE ON FUNCTION retention.sweeping(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.sweeping(text) TO retention_worker;

-- Tenants whose last pass of a job, within a day, left work behind; ids and nothing else.
CREATE INDEX run_outcomes_by_time ON retention.run_outcomes (job, at);
CREATE FUNCTION retention.sweeps_behind(wanted text) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT latest.tenant_id FROM (
    SELECT DISTINCT ON (o.tenant_id) o.tenant_id, o.outcome FROM retention.run_outcomes AS o
    WHERE o.job = wanted AND o.at > clock_timestamp() - interval '25 hours' AND o.outcome NOT IN ('preflight', 'skipped')
    ORDER BY o.tenant_id, o.id DESC) AS latest
  WHERE latest.outcome IN ('work_remains', 'behind') ORDER BY 1
$$;
REVOKE EXECUTE ON FUNCTION retention.sweeps_behind(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.sweeps_behind(text) TO retention_worker;

-- A receipt is for a run that has taken an approval, and reaches no further than that. Whoever writes one leaves the event.
CREATE FUNCTION retention.require_approved_sweep() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given record;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('retention.sweep ' || NEW.approval_id || ' ' || NEW.run, 0));
  SELECT a.actor, a.max_items INTO given FROM retention.approvals AS a
  WHERE a.id = NEW.approval_id AND a.tenant_id = NEW.tenant_id;
  IF NOT FOUND OR NOT retention.approved(NEW.tenant_id, NEW.approval_id, NEW.run, 'sweep:' || NEW.dataset, NULL)
    OR given.max_items < NEW.items + (SELECT coalesce(sum(r.items), 0) FROM retention.sweep_receipts AS r
      WHERE r.approval_id = NEW.approval_id AND r.run = NEW.run) THEN
    RAISE EXCEPTION 'no approval for a sweep' USING ERRCODE = 'RT010';
  END IF;
  NEW.at := clock_timestamp();
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, run, details)
  VALUES (NEW.tenant_id, given.actor, 'sweep.' || NEW.verb, NEW.dataset || '/' || NEW.table_name, 'done', NEW.run,
    NEW.details || jsonb_build_object('items', NEW.items, 'approval', NEW.approval_id));
  RETURN NEW;
END $$;
CREATE TRIGGER approved BEFORE INSERT ON retention.sweep_receipts
FOR EACH ROW EXECUTE FUNCTION retention.require_approved_sweep();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.sweep_receipts
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.sweep_receipts
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['sweep_positions', 'sweep_set_asides', 'sweep_receipts'] LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY worker_own_tenant ON retention.%I TO retention_worker USING (tenant_id = (SELECT retention.current_tenant()))', name);
    EXECUTE format('GRANT SELECT, INSERT ON retention.%I TO retention_worker', name);
    EXECUTE format('CREATE POLICY operator_reads ON retention.%I FOR SELECT TO retention_operator USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted(''workflow_retention:read'')))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_operator', name);
    EXECUTE format('CREATE POLICY counter_all_tenants ON retention.%I FOR SELECT TO retention_counter USING (true)', name);
  END LOOP;
END $$;
GRANT UPDATE, DELETE ON retention.sweep_positions, retention.sweep_set_asides TO retention_worker;
ALTER TABLE retention.sweep_rounds ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_goes_round ON retention.sweep_rounds TO retention_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON retention.sweep_rounds TO retention_worker;

GRANT SELECT ON retention.sweep_receipts, retention.run_outcomes TO retention_counter;
GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.sweeping(text) OWNER TO retention_counter;
ALTER FUNCTION retention.sweeps_behind(text) OWNER TO retention_counter;
ALTER FUNCTION retention.require_approved_sweep() OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
