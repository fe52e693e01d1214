-- The product's own schema. Every tenant table: forced row-level security, one policy, the tenant from one function.

CREATE SCHEMA IF NOT EXISTS retention;
REVOKE ALL ON SCHEMA retention FROM PUBLIC;
GRANT USAGE ON SCHEMA retention TO retention_worker, retention_operator, retention_counter;

CREATE FUNCTION retention.current_tenant() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
  tenant text := current_setting('retention.tenant_id', true);
BEGIN
  -- After a transaction-local setting ends it reads as '', not NULL: both mean that nobody said whose rows these are.
  IF tenant IS NULL OR tenant = '' THEN
    RAISE EXCEPTION 'no tenant is set' USING ERRCODE = '42501', HINT = 'set retention.tenant_id in this transaction';
  END IF;
  RETURN tenant;
END $$;

CREATE FUNCTION retention.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = '42501';
END $$;

-- A trigger and not a CHECK: a dump is restored by another login than those who acted.
CREATE FUNCTION retention.in_ones_own_name() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  IF to_jsonb(NEW) ->> TG_ARGV[0] IS DISTINCT FROM session_user::text THEN
    RAISE EXCEPTION 'nobody acts in another name' USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$;

-- Governance ---------------------------------------------------------------------------------------------------------

CREATE TABLE retention.grant_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,  -- '*': the whole installation
  principal text NOT NULL,
  permission text NOT NULL CHECK (permission IN (
    'workflow_retention:read', 'workflow_retention:reconcile', 'workflow_retention:archive',
    'workflow_retention:profile_manage', 'workflow_retention:legal_hold', 'workflow_recovery:cancel',
    'workflow_retention:restore', 'workflow_retention:key_manage', 'workflow_retention:grant',
    'workflow_retention:egress')),
  action text NOT NULL CHECK (action IN ('add', 'remove')),
  actor text NOT NULL DEFAULT session_user,
  reason text,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.grant_events (principal, permission, tenant_id, id DESC);

CREATE TABLE retention.setting_events (  -- installation-wide, the latest counts
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL CHECK (name IN ('workflow.archive.egress.mode', 'workflow.archive.egress.allowed_destinations')),
  value jsonb NOT NULL,
  actor text NOT NULL DEFAULT session_user,
  reason text NOT NULL CHECK (reason ~ '\S'),
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.setting_events (name, id DESC);

CREATE TABLE retention.hold_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  instance_id text NOT NULL,
  matter text NOT NULL CHECK (matter ~ '\S'),
  action text NOT NULL CHECK (action IN ('hold', 'release')),
  reason text NOT NULL CHECK (reason ~ '\S'),
  correlation text NOT NULL,
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.hold_events (tenant_id, instance_id, matter, id DESC);

CREATE TABLE retention.preflights (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id text NOT NULL,
  as_of timestamptz NOT NULL,
  run text NOT NULL,
  actor text NOT NULL DEFAULT session_user,
  total bigint NOT NULL,
  eligible bigint NOT NULL,
  due bigint NOT NULL,
  blocked_due bigint NOT NULL,
  missing_epochs bigint NOT NULL,
  dispositions jsonb NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.preflights (tenant_id, at DESC);

CREATE TABLE retention.acknowledgements (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  preflight_id uuid NOT NULL REFERENCES retention.preflights,
  reason text NOT NULL CHECK (reason ~ '\S'),
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.acknowledgements (tenant_id, id DESC);

CREATE TABLE retention.approvals (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id text NOT NULL,
  job text NOT NULL CHECK (job IN ('reconcile', 'archive', 'restore')),
  subject text,  -- the one instance or archive, for the jobs that have one
  kind text NOT NULL CHECK (kind IN ('single_use', 'standing')),
  max_items integer NOT NULL CHECK (max_items > 0),
  expires_at timestamptz NOT NULL CHECK (expires_at > at AND isfinite(expires_at)),
  reason text NOT NULL CHECK (reason ~ '\S'),
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.approvals (tenant_id, job, at DESC);

CREATE TABLE retention.approval_uses (
  approval_id uuid NOT NULL REFERENCES retention.approvals,
  run text NOT NULL,
  tenant_id text NOT NULL,
  single_use boolean NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (approval_id, run)
);
CREATE UNIQUE INDEX single_use_means_once ON retention.approval_uses (approval_id) WHERE single_use;

CREATE TABLE retention.audit_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor text NOT NULL,
  session_role text NOT NULL DEFAULT session_user,
  kind text NOT NULL,
  subject text,
  outcome text NOT NULL,
  code text,
  reason text,
  correlation text,
  run text,
  details jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX ON retention.audit_events (tenant_id, id);
CREATE INDEX ON retention.audit_events (tenant_id, subject);

-- Archive profiles, secrets, keys -------------------------------------------------------------------------------------

CREATE TABLE retention.tenant_keys (
  tenant_id text NOT NULL,
  generation integer NOT NULL CHECK (generation > 0),
  key_id text NOT NULL UNIQUE,  -- opaque: stands in clear in every envelope
  root_key_id text NOT NULL,
  ciphertext bytea NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, generation)
);

CREATE TABLE retention.secrets (
  id uuid NOT NULL,
  tenant_id text NOT NULL,
  generation integer NOT NULL DEFAULT 1 CHECK (generation > 0),
  key_id text NOT NULL,
  ciphertext bytea NOT NULL,
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id, generation)
);

CREATE TABLE retention.secret_revocations (
  tenant_id text NOT NULL,
  id uuid NOT NULL,
  reason text NOT NULL CHECK (reason ~ '\S'),
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id)
);

CREATE TABLE retention.profiles (  -- append-only: a change is a new generation
  tenant_id text NOT NULL,
  generation integer NOT NULL CHECK (generation > 0),
  provider text NOT NULL CHECK (provider IN ('filesystem', 's3-compatible')),
  configuration jsonb NOT NULL,
  secret_id uuid,
  archive_retention_days integer NOT NULL CHECK (archive_retention_days = 0 OR archive_retention_days >= 365),
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, generation),
  CHECK ((provider = 's3-compatible') = (secret_id IS NOT NULL))
);

CREATE TABLE retention.readiness_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  profile_generation integer NOT NULL,
  secret_generation integer,
  ready boolean NOT NULL,
  codes text[] NOT NULL,
  locks boolean NOT NULL DEFAULT false,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  FOREIGN KEY (tenant_id, profile_generation) REFERENCES retention.profiles
);
CREATE INDEX ON retention.readiness_events (tenant_id, id DESC);

CREATE TABLE retention.canary_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  attempt_id uuid NOT NULL,
  profile_generation integer NOT NULL,
  identical boolean NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.canary_events (tenant_id, id DESC);

-- The work ------------------------------------------------------------------------------------------------------------

CREATE TABLE retention.leases (  -- G7: one writer per job and tenant, through transaction poolers too
  tenant_id text NOT NULL,
  job text NOT NULL,
  holder text NOT NULL,
  fence bigint NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, job)
);

CREATE TABLE retention.eligible_sets (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id text NOT NULL,
  preflight_id uuid NOT NULL REFERENCES retention.preflights,
  as_of timestamptz NOT NULL,
  run text NOT NULL,
  items bigint NOT NULL,
  remaining bigint NOT NULL,  -- eligible now, beyond the bounds of one run
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.eligible_sets (tenant_id, at DESC);

CREATE TABLE retention.eligible_items (
  set_id uuid NOT NULL REFERENCES retention.eligible_sets,
  position integer NOT NULL,
  tenant_id text NOT NULL,
  instance_id text NOT NULL,
  epoch integer NOT NULL,
  epoch_at timestamptz NOT NULL,
  PRIMARY KEY (set_id, position)
);

CREATE TABLE retention.attempts (
  id uuid PRIMARY KEY,
  tenant_id text NOT NULL,
  instance_id text NOT NULL,
  epoch integer NOT NULL,
  epoch_at timestamptz NOT NULL,
  state text NOT NULL CHECK (state IN (
    'intended', 'stored', 'verified', 'source_deleted', 'expiring', 'tombstone', 'superseded', 'conflict', 'abandoned')),
  approval_id uuid NOT NULL REFERENCES retention.approvals,
  job text NOT NULL,
  run text NOT NULL,
  holder text NOT NULL,
  fence bigint NOT NULL DEFAULT 1,
  leased_until timestamptz NOT NULL,
  profile_generation integer NOT NULL,
  archive_retention_days integer NOT NULL CHECK (archive_retention_days = 0 OR archive_retention_days >= 365),
  key_id text NOT NULL REFERENCES retention.tenant_keys (key_id),
  object_key text NOT NULL UNIQUE,
  object_version text,
  object_size bigint NOT NULL CHECK (object_size BETWEEN 1 AND 67108864),
  object_sha256 bytea NOT NULL CHECK (length(object_sha256) = 32),
  plaintext_size bigint NOT NULL,
  manifest_digest bytea NOT NULL CHECK (length(manifest_digest) = 32),
  manifest_format text NOT NULL,
  fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
  shared_digest bytea NOT NULL CHECK (length(shared_digest) = 32),
  rows_by_table jsonb NOT NULL,
  code text,
  intended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  stored_at timestamptz,
  verified_at timestamptz,
  source_deleted_at timestamptz,
  ended_at timestamptz,
  CHECK (state NOT IN ('stored', 'verified', 'source_deleted', 'expiring', 'tombstone') OR object_version IS NOT NULL),
  CHECK (state NOT IN ('verified', 'source_deleted', 'expiring', 'tombstone') OR verified_at IS NOT NULL),
  CHECK (state NOT IN ('source_deleted', 'expiring', 'tombstone') OR source_deleted_at IS NOT NULL)
);
CREATE UNIQUE INDEX one_live_attempt ON retention.attempts (tenant_id, instance_id, epoch)
  WHERE state IN ('intended', 'stored', 'verified');
CREATE INDEX ON retention.attempts (tenant_id, state, intended_at);
CREATE INDEX ON retention.attempts (tenant_id, instance_id);

CREATE TABLE retention.set_asides (  -- one instance that failed alone: others go on, it waits
  tenant_id text NOT NULL,
  instance_id text NOT NULL,
  code text NOT NULL,
  failures integer NOT NULL DEFAULT 1,
  not_before timestamptz NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, instance_id)
);

CREATE TABLE retention.receipts (  -- the deletion receipt: what stays of a source row
  attempt_id uuid PRIMARY KEY REFERENCES retention.attempts,
  tenant_id text NOT NULL,
  instance_id text NOT NULL,
  epoch integer NOT NULL,
  approval_id uuid NOT NULL REFERENCES retention.approvals,
  actor text NOT NULL,
  run text NOT NULL,
  rows_by_table jsonb NOT NULL,
  deleted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.receipts (tenant_id, instance_id);

CREATE TABLE retention.hold_bindings (  -- A9
  attempt_id uuid NOT NULL REFERENCES retention.attempts,
  hold_event_id bigint NOT NULL REFERENCES retention.hold_events,
  tenant_id text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (attempt_id, hold_event_id)
);

CREATE TABLE retention.restorations (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  instance_id text NOT NULL,
  attempt_id uuid NOT NULL REFERENCES retention.attempts,
  approval_id uuid NOT NULL REFERENCES retention.approvals,
  grace_until timestamptz NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.restorations (tenant_id, instance_id, id DESC);

CREATE TABLE retention.run_outcomes (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  job text NOT NULL,
  run text NOT NULL,
  outcome text NOT NULL,
  reason text NOT NULL,
  counts jsonb NOT NULL,
  started_at timestamptz NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.run_outcomes (tenant_id, job, id DESC);

-- Functions that see more than one tenant, or more than their caller ---------------------------------------------------

CREATE FUNCTION retention.principal_permitted(who text, wanted text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT coalesce(bool_or(latest.action = 'add'), false)
  FROM (
    SELECT DISTINCT ON (tenant_id) action
    FROM retention.grant_events
    WHERE principal = who AND permission = wanted
      AND tenant_id IN ('*', nullif(current_setting('retention.tenant_id', true), ''))
    ORDER BY tenant_id, id DESC
  ) AS latest
$$;
REVOKE EXECUTE ON FUNCTION retention.principal_permitted(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.principal_permitted(text, text) TO retention_worker, retention_counter;

-- SECURITY DEFINER keeps `session_user`, the login: nobody can ask in another's name.
CREATE FUNCTION retention.permitted(wanted text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT retention.principal_permitted(session_user, wanted)
$$;

CREATE FUNCTION retention.permitted_everywhere(wanted text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT coalesce((
    SELECT action = 'add' FROM retention.grant_events
    WHERE principal = session_user AND permission = wanted AND tenant_id = '*' ORDER BY id DESC LIMIT 1), false)
$$;

CREATE FUNCTION retention.approval_permission(job text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT CASE job WHEN 'reconcile' THEN 'workflow_retention:reconcile' WHEN 'archive' THEN 'workflow_retention:archive'
    WHEN 'restore' THEN 'workflow_retention:restore' END
$$;

-- The same lock for the deletion of an instance and for a hold on it: whichever comes second sees what the first one did.
CREATE FUNCTION retention.instance_lock(tenant text, instance text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT hashtextextended(tenant || chr(31) || instance, 20260101)
$$;

CREATE FUNCTION retention.place_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(retention.instance_lock(NEW.tenant_id, NEW.instance_id));
  IF NEW.action = 'hold' AND EXISTS (
    SELECT FROM retention.attempts AS a
    WHERE a.tenant_id = NEW.tenant_id AND a.instance_id = NEW.instance_id
      AND a.state IN ('expiring', 'tombstone')
      AND NOT EXISTS (SELECT FROM retention.attempts AS b WHERE b.tenant_id = a.tenant_id
        AND b.instance_id = a.instance_id AND b.state = 'source_deleted')) THEN
    RAISE EXCEPTION 'the archive of this instance is being deleted or gone' USING ERRCODE = 'RT001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER place_hold BEFORE INSERT ON retention.hold_events FOR EACH ROW EXECUTE FUNCTION retention.place_hold();

-- A hold on an instance whose row is gone is bound to its archive at once.
CREATE FUNCTION retention.bind_late_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF NEW.action = 'hold' THEN
    INSERT INTO retention.hold_bindings (attempt_id, hold_event_id, tenant_id)
    SELECT id, NEW.id, NEW.tenant_id FROM retention.attempts
    WHERE tenant_id = NEW.tenant_id AND instance_id = NEW.instance_id AND state = 'source_deleted';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER bind_late_hold AFTER INSERT ON retention.hold_events
FOR EACH ROW EXECUTE FUNCTION retention.bind_late_hold();

-- An operator's act and its audit event are one statement: nobody inserts audit events by hand.
CREATE FUNCTION retention.audit_act() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  act jsonb := to_jsonb(NEW);
BEGIN
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, reason, correlation, details)
  VALUES (
    coalesce(act ->> 'tenant_id', '*'),
    session_user,
    TG_ARGV[0] || coalesce('.' || (act ->> 'action'), ''),
    coalesce(act ->> TG_ARGV[1], ''),
    'done',
    act ->> 'reason',
    act ->> 'correlation',
    -- Ids, counts and choices only: no configuration, no ciphertext (A16).
    jsonb_strip_nulls(jsonb_build_object(
      'generation', act -> 'generation', 'permission', act -> 'permission', 'matter', act -> 'matter',
      'job', act -> 'job', 'kind', act -> 'kind', 'max_items', act -> 'max_items', 'expires_at', act -> 'expires_at',
      'provider', act -> 'provider', 'archive_retention_days', act -> 'archive_retention_days')));
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT ON retention.grant_events FOR EACH ROW EXECUTE FUNCTION retention.audit_act('grant', 'principal');
CREATE TRIGGER audit AFTER INSERT ON retention.setting_events FOR EACH ROW EXECUTE FUNCTION retention.audit_act('setting', 'name');
CREATE TRIGGER audit AFTER INSERT ON retention.hold_events FOR EACH ROW EXECUTE FUNCTION retention.audit_act('hold', 'instance_id');
CREATE TRIGGER audit AFTER INSERT ON retention.acknowledgements FOR EACH ROW EXECUTE FUNCTION retention.audit_act('acknowledgement', 'preflight_id');
CREATE TRIGGER audit AFTER INSERT ON retention.approvals FOR EACH ROW EXECUTE FUNCTION retention.audit_act('approval', 'id');
CREATE TRIGGER audit AFTER INSERT ON retention.secrets FOR EACH ROW EXECUTE FUNCTION retention.audit_act('secret', 'generation');
CREATE TRIGGER audit AFTER INSERT ON retention.secret_revocations FOR EACH ROW EXECUTE FUNCTION retention.audit_act('secret.revoke', 'none');
CREATE TRIGGER audit AFTER INSERT ON retention.profiles FOR EACH ROW EXECUTE FUNCTION retention.audit_act('profile', 'generation');

-- A denial is recorded in a transaction of its own, by whoever was denied; nothing else can be written through this.
CREATE FUNCTION retention.audit_denial(tenant text, wanted text, command text, correlation text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, correlation, details)
  VALUES (tenant, session_user, 'denied', left(command, 64), 'denied', 'RETENTION_PERMISSION_DENIED', left(correlation, 64),
          jsonb_build_object('permission', left(wanted, 64)))
$$;

-- The first administrator: once, by the owner of the schema, and only while nobody has any permission.
CREATE FUNCTION retention.bootstrap(first_administrator text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  LOCK TABLE retention.grant_events IN EXCLUSIVE MODE;
  IF retention.bootstrapped() THEN
    RAISE EXCEPTION 'permissions exist already' USING ERRCODE = 'RT002';
  END IF;
  INSERT INTO retention.grant_events (tenant_id, principal, permission, action, reason)
  SELECT '*', first_administrator, permission, 'add', 'bootstrap'
  FROM unnest(ARRAY[
    'workflow_retention:read', 'workflow_retention:reconcile', 'workflow_retention:archive',
    'workflow_retention:profile_manage', 'workflow_retention:legal_hold', 'workflow_recovery:cancel',
    'workflow_retention:restore', 'workflow_retention:key_manage', 'workflow_retention:grant',
    'workflow_retention:egress']) AS permission;
END $$;
REVOKE EXECUTE ON FUNCTION retention.bootstrap(text) FROM PUBLIC;

CREATE FUNCTION retention.bootstrapped() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT EXISTS (SELECT FROM retention.grant_events)
$$;

-- The newest profile without its places, and whether its readiness still holds (A15, A16): only an event of the newest
-- generations of both profile and secret counts.
CREATE FUNCTION retention.profile_status() RETURNS TABLE (
  generation integer, provider text, archive_retention_days integer, secret_generation integer, revoked boolean,
  checked_at timestamptz, ready boolean, codes text[], locks boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT p.generation, p.provider, p.archive_retention_days, s.generation, r.revoked,
    e.at, coalesce(e.ready AND NOT r.revoked, false), coalesce(e.codes, '{}'), coalesce(e.locks, false)
  FROM (SELECT tenant_id, generation, provider, archive_retention_days, secret_id FROM retention.profiles
    WHERE tenant_id = retention.current_tenant() ORDER BY generation DESC LIMIT 1) AS p
  CROSS JOIN LATERAL (SELECT max(generation) AS generation FROM retention.secrets
    WHERE tenant_id = p.tenant_id AND id = p.secret_id) AS s
  CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM retention.secret_revocations
    WHERE tenant_id = p.tenant_id AND id = p.secret_id) AS revoked) AS r
  LEFT JOIN LATERAL (SELECT ready, codes, locks, at FROM retention.readiness_events
    WHERE tenant_id = p.tenant_id AND profile_generation = p.generation
      AND secret_generation IS NOT DISTINCT FROM s.generation ORDER BY id DESC LIMIT 1) AS e ON true
  WHERE pg_has_role(session_user, 'retention_worker', 'MEMBER') OR retention.permitted('workflow_retention:read')
    OR retention.permitted('workflow_retention:profile_manage')
$$;

-- The catalog opts a source table in: its rows go only while a verified archive of their instance is live.
CREATE FUNCTION retention.guard_archived() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  gone jsonb := to_jsonb(OLD);
BEGIN
  IF NOT EXISTS (
    SELECT FROM retention.attempts
    WHERE tenant_id = gone ->> TG_ARGV[0] AND instance_id = gone ->> TG_ARGV[1]
      AND state = 'verified' AND verified_at > clock_timestamp() - interval '2 hours') THEN
    RAISE EXCEPTION 'no verified archive stands for this row' USING ERRCODE = 'RT003',
      HINT = 'instances end through retention alone: archive, verify, delete';
  END IF;
  RETURN OLD;
END $$;

-- Row-level security, privileges, append-only tables -------------------------------------------------------------------

DO $$
DECLARE
  name text;
BEGIN
  FOR name IN
    SELECT c.relname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
    WHERE c.relnamespace = 'retention'::regnamespace AND c.relkind = 'r'
  LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY worker_own_tenant ON retention.%I TO retention_worker USING (tenant_id = (SELECT retention.current_tenant()))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_worker', name);
    EXECUTE format('CREATE POLICY counter_all_tenants ON retention.%I FOR SELECT TO retention_counter USING (true)', name);
    IF name NOT IN ('secrets', 'tenant_keys', 'profiles') THEN
      EXECUTE format('CREATE POLICY operator_reads ON retention.%I FOR SELECT TO retention_operator USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted(''workflow_retention:read'')))', name);
      EXECUTE format('GRANT SELECT ON retention.%I TO retention_operator', name);
    END IF;
  END LOOP;
  FOREACH name IN ARRAY ARRAY[
    'grant_events', 'setting_events', 'hold_events', 'preflights', 'acknowledgements', 'approvals', 'approval_uses',
    'audit_events', 'secrets', 'secret_revocations', 'profiles', 'readiness_events', 'canary_events', 'receipts',
    'hold_bindings', 'restorations', 'run_outcomes']
  LOOP
    EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.%I FOR EACH ROW EXECUTE FUNCTION retention.refuse_change()', name);
    EXECUTE format('CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.%I FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change()', name);
  END LOOP;
  FOREACH name IN ARRAY ARRAY[
    'grant_events', 'setting_events', 'hold_events', 'acknowledgements', 'approvals', 'secrets', 'secret_revocations', 'profiles']
  LOOP
    EXECUTE format('CREATE TRIGGER actor BEFORE INSERT ON retention.%I FOR EACH ROW EXECUTE FUNCTION retention.in_ones_own_name(''actor'')', name);
  END LOOP;
  CREATE TRIGGER actor BEFORE INSERT ON retention.audit_events FOR EACH ROW EXECUTE FUNCTION retention.in_ones_own_name('session_role');
END $$;

ALTER TABLE retention.setting_events ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_reads ON retention.setting_events FOR SELECT TO retention_worker USING (true);
CREATE POLICY egress_reads ON retention.setting_events FOR SELECT TO retention_operator
  USING ((SELECT retention.permitted_everywhere('workflow_retention:egress')));
CREATE POLICY egress_writes ON retention.setting_events FOR INSERT TO retention_operator
  WITH CHECK (actor = session_user AND (SELECT retention.permitted_everywhere('workflow_retention:egress')));
GRANT SELECT ON retention.setting_events TO retention_worker;
GRANT SELECT, INSERT ON retention.setting_events TO retention_operator;

-- What an operator may write, tied to the permission: psql under an operator's login can do no more than the command line.
CREATE POLICY operator_grants ON retention.grant_events FOR INSERT TO retention_operator WITH CHECK (
  actor = session_user AND CASE tenant_id WHEN '*' THEN (SELECT retention.permitted_everywhere('workflow_retention:grant'))
    ELSE tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:grant')) END);
CREATE POLICY grantor_reads ON retention.grant_events FOR SELECT TO retention_operator USING (
  (tenant_id = '*' OR tenant_id = (SELECT retention.current_tenant()))
  AND (SELECT retention.permitted('workflow_retention:grant')));
CREATE POLICY owner_bootstraps ON retention.grant_events FOR INSERT TO retention_owner WITH CHECK (tenant_id = '*');
CREATE POLICY operator_holds ON retention.hold_events FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:legal_hold')));
CREATE POLICY operator_acknowledges ON retention.acknowledgements FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:reconcile')));
CREATE POLICY operator_approves ON retention.approvals FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND retention.permitted(retention.approval_permission(job)));
CREATE POLICY operator_profiles ON retention.profiles FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY operator_secrets ON retention.secrets FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY operator_revokes ON retention.secret_revocations FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY manager_reads ON retention.profiles FOR SELECT TO retention_operator USING (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY manager_reads ON retention.secrets FOR SELECT TO retention_operator USING (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY manager_reads ON retention.tenant_keys FOR SELECT TO retention_operator USING (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY manager_creates ON retention.tenant_keys FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND generation = 1
  AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY manager_reads ON retention.secret_revocations FOR SELECT TO retention_operator USING (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:profile_manage')));
CREATE POLICY holder_reads ON retention.hold_events FOR SELECT TO retention_operator USING (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:legal_hold')));
GRANT INSERT ON retention.grant_events, retention.hold_events, retention.acknowledgements, retention.approvals,
  retention.profiles, retention.secrets, retention.secret_revocations, retention.tenant_keys TO retention_operator;
GRANT SELECT ON retention.profiles, retention.secrets, retention.tenant_keys TO retention_operator;

GRANT INSERT ON retention.preflights, retention.approval_uses, retention.audit_events, retention.tenant_keys,
  retention.readiness_events, retention.canary_events, retention.leases, retention.eligible_sets,
  retention.eligible_items, retention.attempts, retention.set_asides, retention.receipts, retention.hold_bindings,
  retention.restorations, retention.run_outcomes TO retention_worker;
GRANT UPDATE ON retention.leases, retention.attempts, retention.set_asides TO retention_worker;
GRANT DELETE ON retention.set_asides, retention.eligible_sets, retention.eligible_items TO retention_worker;

-- What the definer functions need, and no more.
GRANT SELECT ON retention.grant_events, retention.attempts, retention.hold_events, retention.secret_revocations,
  retention.readiness_events TO retention_counter;
GRANT SELECT (tenant_id, generation, provider, archive_retention_days, secret_id) ON retention.profiles TO retention_counter;
GRANT SELECT (tenant_id, id, generation) ON retention.secrets TO retention_counter;
GRANT INSERT ON retention.audit_events, retention.hold_bindings TO retention_counter;
CREATE POLICY counter_audits ON retention.audit_events FOR INSERT TO retention_counter WITH CHECK (true);
CREATE POLICY counter_binds ON retention.hold_bindings FOR INSERT TO retention_counter WITH CHECK (true);
GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.principal_permitted(text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.permitted(text) OWNER TO retention_counter;
ALTER FUNCTION retention.permitted_everywhere(text) OWNER TO retention_counter;
ALTER FUNCTION retention.bootstrapped() OWNER TO retention_counter;
ALTER FUNCTION retention.place_hold() OWNER TO retention_counter;
ALTER FUNCTION retention.bind_late_hold() OWNER TO retention_counter;
ALTER FUNCTION retention.audit_act() OWNER TO retention_counter;
ALTER FUNCTION retention.audit_denial(text, text, text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.guard_archived() OWNER TO retention_counter;
ALTER FUNCTION retention.profile_status() OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
