-- The reference workflow platform: the source tables that the shipped catalog describes.
-- A platform of its own: it knows nothing of the schema "retention". Installed by the demo, by `retention dev` and by tests.

CREATE SCHEMA nucleus;

CREATE FUNCTION nucleus.current_tenant() RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  tenant text := current_setting('nucleus.tenant_id', true);
BEGIN
  -- After a transaction-local setting ends it reads as '', not NULL: both mean that nobody said whose rows these are.
  IF tenant IS NULL OR tenant = '' THEN
    RAISE EXCEPTION 'no tenant is set' USING ERRCODE = '42501', HINT = 'set nucleus.tenant_id in this transaction';
  END IF;
  RETURN tenant::uuid;
END $$;

CREATE TABLE nucleus.tenants (
  id uuid PRIMARY KEY,
  alias text NOT NULL UNIQUE,
  default_retention_days numeric,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT tenants_retention_days_whole CHECK (default_retention_days::text ~ '^[0-9]{1,6}$')
);

CREATE TABLE nucleus.workflows (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  name text NOT NULL,
  version integer NOT NULL DEFAULT 1,
  definition jsonb NOT NULL,
  retention_days numeric,
  updated_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT workflows_retention_days_whole CHECK (retention_days::text ~ '^[0-9]{1,6}$')
);

CREATE TABLE nucleus.workflow_instances (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  workflow_id uuid NOT NULL REFERENCES nucleus.workflows,
  state text NOT NULL,
  title text,
  variables jsonb NOT NULL DEFAULT '{}',
  priority smallint NOT NULL DEFAULT 0,
  deadline interval,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_terminal_epochs (
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  epoch integer NOT NULL CHECK (epoch > 0),
  tenant_id uuid NOT NULL,
  state text NOT NULL,
  entered_at timestamptz NOT NULL,
  PRIMARY KEY (instance_id, epoch)
);

CREATE TABLE nucleus.workflow_contexts (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  name text NOT NULL,
  payload jsonb,
  data jsonb NOT NULL DEFAULT '{}',
  deleted_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_transitions (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  from_state text,
  to_state text NOT NULL,
  actor text,
  details jsonb,
  at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_transition_requests (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  status text NOT NULL CHECK (status IN ('pending', 'claimed', 'running', 'completed', 'failed', 'cancelled')),
  replay_of uuid,
  requested_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz
);

CREATE TABLE nucleus.workflow_executions (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  status text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  log text,
  cost numeric,
  started_at timestamptz,
  finished_at timestamptz,
  took interval GENERATED ALWAYS AS (finished_at - started_at) STORED
);

CREATE TABLE nucleus.workflow_action_checkpoints (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id uuid NOT NULL,
  execution_id uuid NOT NULL REFERENCES nucleus.workflow_executions,
  step text NOT NULL,
  output jsonb,
  attachment bytea,
  at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_dead_letters (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  status text NOT NULL CHECK (status IN ('open', 'resolved', 'not_replayable')),
  fence bigint NOT NULL DEFAULT 1,
  error text,
  created_at timestamptz NOT NULL DEFAULT now(),
  closed_at timestamptz
);

CREATE TABLE nucleus.workflow_triggers (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  workflow_id uuid NOT NULL REFERENCES nucleus.workflows,
  kind text NOT NULL,
  active boolean NOT NULL DEFAULT true,
  configuration jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE nucleus.workflow_trigger_occurrences (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  trigger_id uuid NOT NULL REFERENCES nucleus.workflow_triggers,
  occurred_at timestamptz NOT NULL,
  event jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE nucleus.workflow_occurrence_targets (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  occurrence_id uuid NOT NULL REFERENCES nucleus.workflow_trigger_occurrences,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  status text NOT NULL CHECK (status IN ('pending', 'dispatched', 'completed', 'failed', 'skipped')),
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_trigger_deliveries (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  target_id uuid NOT NULL REFERENCES nucleus.workflow_occurrence_targets,
  status text NOT NULL CHECK (status IN ('pending', 'active', 'delivered', 'failed')),
  attempt integer NOT NULL DEFAULT 1,
  response text,
  at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_artifact_operations (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  kind text NOT NULL,
  status text NOT NULL CHECK (status IN ('open', 'running', 'done', 'failed', 'cancelled')),
  bytes bigint,
  checksum bytea,
  at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_stores (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  name text NOT NULL,
  detached_at timestamptz
);

CREATE TABLE nucleus.workflow_store_bindings (
  store_id uuid NOT NULL REFERENCES nucleus.workflow_stores,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  tenant_id uuid NOT NULL,
  bound_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (store_id, instance_id)
);

-- Payloads that their writers may mark as short-lived. `data` and `variables` are older columns that mirror the payload;
-- `payload_expired_at` is what stays when it is cleared: an instant, so that a reader can tell expired from never there.
CREATE TABLE nucleus.workflow_central_instances (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  payload jsonb,
  variables jsonb NOT NULL DEFAULT '{}',
  payload_expired_at timestamptz,
  updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.workflow_central_tasks (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid NOT NULL REFERENCES nucleus.workflow_instances,
  name text NOT NULL DEFAULT 'task',
  payload jsonb,
  data jsonb NOT NULL DEFAULT '{}',
  payload_expired_at timestamptz,
  updated_at timestamptz NOT NULL DEFAULT now()
);

-- Settings of a tenant's own, among them `workflow.allow_ephemeral_payload`.
CREATE TABLE nucleus.tenant_settings (
  tenant_id uuid NOT NULL,
  name text NOT NULL,
  value jsonb NOT NULL,
  PRIMARY KEY (tenant_id, name)
);

-- Idempotency keys of submitted jobs, so that a submission that comes twice is one.
CREATE TABLE nucleus.crm_submission_ledger (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  idempotency_key text NOT NULL,
  job_id uuid,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.platform_submission_ledger (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id uuid NOT NULL,
  idempotency_key text NOT NULL,
  job_id uuid,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.jobs (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  instance_id uuid,  -- the workflow instance that asked for it, if one did; a hold on that instance keeps the job
  kind text NOT NULL,
  status text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  created_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz
);

CREATE TABLE nucleus.job_outcome_evidence (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  job_id uuid NOT NULL REFERENCES nucleus.jobs,
  outcome text NOT NULL,
  detail jsonb NOT NULL DEFAULT '{}',
  recorded_at timestamptz NOT NULL DEFAULT now()
);

-- Companies, the people who ask to join them, and what that leaves behind.
CREATE TABLE nucleus.companies (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  name text NOT NULL,
  status text NOT NULL CHECK (status IN ('active', 'paused', 'archived', 'deleted')),
  updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.company_invites (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  company_id uuid NOT NULL REFERENCES nucleus.companies,
  expires_at timestamptz,
  revoked_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.join_requests (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  company_id uuid NOT NULL REFERENCES nucleus.companies,
  invite_id uuid REFERENCES nucleus.company_invites,
  kind text NOT NULL DEFAULT 'human' CHECK (kind IN ('human', 'agent')),
  status text NOT NULL CHECK (status IN ('pending_approval', 'approved', 'rejected')),
  version bigint NOT NULL DEFAULT 1,
  kept_at timestamptz,
  archived_at timestamptz,
  accepted_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.activity_records (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id uuid NOT NULL,
  company_id uuid NOT NULL REFERENCES nucleus.companies,
  subject_id uuid NOT NULL,
  action text NOT NULL,
  actor text NOT NULL,
  at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.notifications (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id uuid NOT NULL,
  company_id uuid NOT NULL REFERENCES nucleus.companies,
  subject_id uuid NOT NULL,
  kind text NOT NULL,
  at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nucleus.agent_deliveries (  -- what an agent is told; archiving a request tells none
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id uuid NOT NULL,
  subject_id uuid NOT NULL,
  kind text NOT NULL,
  at timestamptz NOT NULL DEFAULT now()
);

-- Every foreign key from a child has an index: without one, deleting a root costs a scan of the child (DESIGN: 38 ms for 1).
CREATE INDEX ON nucleus.workflows (tenant_id);
CREATE INDEX ON nucleus.workflow_instances (tenant_id, state);
CREATE INDEX ON nucleus.workflow_instances (workflow_id);
CREATE INDEX ON nucleus.workflow_terminal_epochs (tenant_id, entered_at);
CREATE INDEX ON nucleus.workflow_contexts (instance_id);
CREATE INDEX ON nucleus.workflow_transitions (instance_id);
CREATE INDEX ON nucleus.workflow_transition_requests (instance_id);
CREATE INDEX ON nucleus.workflow_executions (instance_id);
CREATE INDEX ON nucleus.workflow_action_checkpoints (execution_id);
CREATE INDEX ON nucleus.workflow_dead_letters (instance_id);
CREATE INDEX ON nucleus.workflow_triggers (workflow_id);
CREATE INDEX ON nucleus.workflow_trigger_occurrences (trigger_id);
CREATE INDEX ON nucleus.workflow_occurrence_targets (instance_id);
CREATE INDEX ON nucleus.workflow_occurrence_targets (occurrence_id);
CREATE INDEX ON nucleus.workflow_trigger_deliveries (target_id);
CREATE INDEX ON nucleus.workflow_artifact_operations (instance_id);
CREATE INDEX ON nucleus.workflow_store_bindings (instance_id);

CREATE INDEX ON nucleus.workflow_central_instances (instance_id);
CREATE INDEX ON nucleus.workflow_central_tasks (instance_id);
-- What a sweep looks for, by tenant and in the order in which it falls due; not one of them reads a whole table.
CREATE INDEX ON nucleus.crm_submission_ledger (tenant_id, created_at, id);
CREATE INDEX ON nucleus.platform_submission_ledger (tenant_id, created_at, id);
CREATE UNIQUE INDEX ON nucleus.crm_submission_ledger (tenant_id, idempotency_key);
CREATE UNIQUE INDEX ON nucleus.platform_submission_ledger (tenant_id, idempotency_key);
CREATE INDEX ON nucleus.jobs (tenant_id, finished_at, id);
CREATE INDEX ON nucleus.jobs (instance_id);
CREATE INDEX ON nucleus.job_outcome_evidence (tenant_id, recorded_at, id);
CREATE INDEX ON nucleus.job_outcome_evidence (job_id);
CREATE INDEX ON nucleus.workflow_transition_requests (tenant_id, finished_at, id);
CREATE INDEX ON nucleus.workflow_transition_requests (tenant_id, finished_at, id) WHERE replay_of IS NOT NULL;
CREATE INDEX ON nucleus.workflow_executions (tenant_id, finished_at, id);
CREATE INDEX ON nucleus.workflow_action_checkpoints (tenant_id, at, id);
CREATE INDEX ON nucleus.workflow_dead_letters (tenant_id, closed_at, id);
CREATE INDEX ON nucleus.workflow_occurrence_targets (tenant_id, created_at, id);
CREATE INDEX ON nucleus.workflow_trigger_deliveries (tenant_id, at, id);
CREATE INDEX ON nucleus.workflow_trigger_occurrences (tenant_id, occurred_at, id);
CREATE INDEX ON nucleus.companies (tenant_id);
CREATE INDEX ON nucleus.company_invites (company_id);
CREATE INDEX ON nucleus.join_requests (company_id);
CREATE INDEX ON nucleus.join_requests (invite_id);
CREATE INDEX ON nucleus.activity_records (company_id);
CREATE INDEX ON nucleus.notifications (company_id);

-- W2: the platform itself records when an instance enters a terminal state, once; nobody can move that instant afterwards.
CREATE FUNCTION nucleus.record_terminal_epoch() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.state NOT IN ('completed', 'failed', 'cancelled') THEN
    RETURN NULL;
  END IF;
  IF TG_OP = 'UPDATE' AND OLD.state = NEW.state THEN
    RETURN NULL;
  END IF;
  -- A restore brings the old epochs back with the instance; it does not enter a terminal state again.
  IF TG_OP = 'INSERT' AND current_setting('retention.restoring', true) = NEW.id::text THEN
    RETURN NULL;
  END IF;
  INSERT INTO nucleus.workflow_terminal_epochs (instance_id, epoch, tenant_id, state, entered_at)
  SELECT NEW.id, 1 + coalesce(max(epoch), 0), NEW.tenant_id, NEW.state, clock_timestamp()
  FROM nucleus.workflow_terminal_epochs WHERE instance_id = NEW.id;
  RETURN NULL;
END $$;

CREATE TRIGGER record_terminal_epoch AFTER INSERT OR UPDATE OF state ON nucleus.workflow_instances
FOR EACH ROW EXECUTE FUNCTION nucleus.record_terminal_epoch();

CREATE FUNCTION nucleus.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'rows of % never change', TG_TABLE_NAME USING ERRCODE = '42501';
END $$;

CREATE TRIGGER epochs_never_change BEFORE UPDATE ON nucleus.workflow_terminal_epochs
FOR EACH ROW EXECUTE FUNCTION nucleus.refuse_change();
CREATE TRIGGER epochs_are_never_truncated BEFORE TRUNCATE ON nucleus.workflow_terminal_epochs
FOR EACH STATEMENT EXECUTE FUNCTION nucleus.refuse_change();

-- A store that was detached takes no new binding. Whoever binds and whoever detaches wait for each other at the store's row.
CREATE FUNCTION nucleus.refuse_detached_store() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  detached timestamptz;
BEGIN
  -- A restore brings an instance back as it was, bindings to stores of that time among them.
  IF current_setting('retention.restoring', true) = NEW.instance_id::text THEN
    RETURN NEW;
  END IF;
  SELECT detached_at INTO detached FROM nucleus.workflow_stores WHERE id = NEW.store_id FOR KEY SHARE;
  IF detached IS NOT NULL THEN
    RAISE EXCEPTION 'the store is detached' USING ERRCODE = '23514';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER refuse_detached_store BEFORE INSERT ON nucleus.workflow_store_bindings
FOR EACH ROW EXECUTE FUNCTION nucleus.refuse_detached_store();

DO $$
DECLARE
  name text;
  column_name text;
BEGIN
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'nucleus'::regnamespace AND relkind = 'r' LOOP
    column_name := CASE name WHEN 'tenants' THEN 'id' ELSE 'tenant_id' END;
    EXECUTE format('ALTER TABLE nucleus.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY own_tenant ON nucleus.%I USING (%I = (SELECT nucleus.current_tenant()))', name, column_name);
  END LOOP;
END $$;

-- What waits for somebody's attention: every pending request that is not archived, kept ones too, whatever became of its invite.
CREATE VIEW nucleus.attention_feed WITH (security_invoker = true) AS
SELECT r.id, r.tenant_id, r.company_id, r.kind, r.created_at, r.updated_at FROM nucleus.join_requests AS r
WHERE r.status = 'pending_approval' AND r.archived_at IS NULL;
