-- Approvals that bind the worker, the brake's limits, and the deletion guard.

ALTER TABLE retention.approvals DROP CONSTRAINT approvals_job_check;
ALTER TABLE retention.approvals ADD CONSTRAINT approvals_job_check CHECK (job IN (
  'reconcile', 'archive', 'restore', 'expire', 'recovery_cancel', 'store_detach'));

-- The bounds of governance/approval.py, for plain SQL as well; what was given before them stays on record.
ALTER TABLE retention.approvals
  ADD CONSTRAINT approvals_bounded CHECK (max_items <= 10000 AND expires_at <= at + CASE kind
    WHEN 'single_use' THEN interval '168 hours' ELSE interval '8784 hours' END) NOT VALID,
  ADD CONSTRAINT approvals_of_one CHECK (
    (subject IS NOT NULL) = (job IN ('archive', 'restore', 'recovery_cancel', 'store_detach'))
    AND (subject IS NULL OR kind = 'single_use')) NOT VALID;

-- The latest act counts, so nobody chooses an act's place or time, not with OVERRIDING SYSTEM VALUE either. This fires after
-- `place_hold`, by its name: of a hold and a release that wait for one lock, the second one counts.
CREATE FUNCTION retention.stamp() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.at := clock_timestamp();
  IF TG_NARGS > 0 THEN
    NEW.id := nextval(pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), TG_ARGV[0])::regclass);
  END IF;
  RETURN NEW;
END $$;
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['grant_events', 'setting_events', 'hold_events', 'acknowledgements'] LOOP
    EXECUTE format('CREATE TRIGGER stamp BEFORE INSERT ON retention.%I FOR EACH ROW EXECUTE FUNCTION retention.stamp(''id'')', name);
    EXECUTE format('GRANT USAGE ON SEQUENCE retention.%I TO retention_counter', name || '_id_seq');
  END LOOP;
  FOREACH name IN ARRAY ARRAY['approvals', 'profiles', 'secrets', 'secret_revocations'] LOOP
    EXECUTE format('CREATE TRIGGER stamp BEFORE INSERT ON retention.%I FOR EACH ROW EXECUTE FUNCTION retention.stamp()', name);
  END LOOP;
END $$;

-- A generation follows the one before it: after the last number there would be no next.
CREATE FUNCTION retention.follow_generations() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  follows boolean;
BEGIN
  IF TG_TABLE_NAME = 'profiles' THEN
    SELECT EXISTS (SELECT FROM retention.profiles AS p WHERE p.tenant_id = NEW.tenant_id
      AND p.generation = NEW.generation - 1) INTO follows;
  ELSE
    SELECT EXISTS (SELECT FROM retention.secrets AS s WHERE s.tenant_id = NEW.tenant_id AND s.id = NEW.id
      AND s.generation = NEW.generation - 1) INTO follows;
  END IF;
  IF NEW.generation > 1 AND NOT follows THEN
    RAISE EXCEPTION 'a generation is left out' USING ERRCODE = '23514';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER follow_generations AFTER INSERT ON retention.profiles
FOR EACH ROW EXECUTE FUNCTION retention.follow_generations();
CREATE TRIGGER follow_generations AFTER INSERT ON retention.secrets
FOR EACH ROW EXECUTE FUNCTION retention.follow_generations();

-- Plain SQL takes no more than the command line: an administrator is always left, and egress is no tenant's to have.
ALTER POLICY operator_grants ON retention.grant_events WITH CHECK (
  actor = session_user
  AND NOT (permission = 'workflow_retention:grant' AND action = 'remove' AND principal = session_user)
  AND NOT (permission = 'workflow_retention:egress' AND action = 'add' AND tenant_id <> '*')
  AND CASE tenant_id WHEN '*' THEN (SELECT retention.permitted_everywhere('workflow_retention:grant'))
    ELSE tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:grant')) END);

-- A denial belongs to the installation, or to the tenant in whose name it happened: nobody opens a chain of events of their own.
CREATE OR REPLACE FUNCTION retention.audit_denial(tenant text, wanted text, command text, correlation text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  IF tenant IS DISTINCT FROM '*' AND (tenant IS DISTINCT FROM retention.current_tenant()
    OR NOT EXISTS (SELECT FROM retention.tenant_directory() AS d WHERE d.id = tenant)) THEN
    RAISE EXCEPTION 'a denial is for the tenant of its transaction' USING ERRCODE = '42501';
  END IF;
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, code, correlation, details)
  VALUES (tenant, session_user, 'denied', left(command, 64), 'denied', 'RETENTION_PERMISSION_DENIED', left(correlation, 64),
          jsonb_build_object('permission', left(wanted, 64)));
END $$;

-- Numbers are accepted for the tenant that they were counted for.
ALTER TABLE retention.preflights ADD UNIQUE (tenant_id, id);
ALTER TABLE retention.acknowledgements ADD FOREIGN KEY (tenant_id, preflight_id) REFERENCES retention.preflights (tenant_id, id);

CREATE OR REPLACE FUNCTION retention.approval_permission(job text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT CASE job WHEN 'reconcile' THEN 'workflow_retention:reconcile' WHEN 'archive' THEN 'workflow_retention:archive'
    WHEN 'restore' THEN 'workflow_retention:restore' WHEN 'expire' THEN 'workflow_retention:archive'
    WHEN 'recovery_cancel' THEN 'workflow_recovery:cancel' WHEN 'store_detach' THEN 'workflow_retention:archive' END
$$;

-- G4: the worker's login alone changes nothing. Whatever it writes refers to an approval of this tenant that lasts, that was
-- given by someone who still has the permission, and that this very run has taken. SQLSTATE RT010 is a missing approval.

CREATE FUNCTION retention.approved(tenant text, approval uuid, using_run text, wanted text, about text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT EXISTS (
    SELECT FROM retention.approval_uses AS u JOIN retention.approvals AS a ON a.id = u.approval_id AND a.tenant_id = u.tenant_id
    WHERE u.approval_id = approval AND u.run = using_run AND u.tenant_id = tenant AND tenant = retention.current_tenant()
      AND a.job = wanted AND (a.subject IS NULL OR a.subject = about) AND a.expires_at > clock_timestamp()
      AND retention.principal_permitted(a.actor, retention.approval_permission(a.job)))
$$;
REVOKE EXECUTE ON FUNCTION retention.approved(text, uuid, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.approved(text, uuid, text, text, text) TO retention_worker, retention_counter;

CREATE FUNCTION retention.require_good_approval() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF NOT EXISTS (
    SELECT FROM retention.approvals AS a
    WHERE a.id = NEW.approval_id AND a.tenant_id = NEW.tenant_id AND (a.kind = 'single_use') = NEW.single_use
      AND a.expires_at > clock_timestamp()
      AND retention.principal_permitted(a.actor, retention.approval_permission(a.job))) THEN
    RAISE EXCEPTION 'the approval is not good for this tenant now' USING ERRCODE = 'RT010';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER good_approval BEFORE INSERT ON retention.approval_uses
FOR EACH ROW EXECUTE FUNCTION retention.require_good_approval();

CREATE FUNCTION retention.require_approved_attempts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF EXISTS (
    SELECT FROM (SELECT DISTINCT n.tenant_id, n.approval_id, n.run, n.job,
        CASE WHEN a.subject IS NOT NULL THEN n.instance_id END AS about
      FROM added AS n LEFT JOIN retention.approvals AS a ON a.id = n.approval_id) AS n
    WHERE NOT retention.approved(n.tenant_id, n.approval_id, n.run, n.job, n.about)) THEN
    RAISE EXCEPTION 'no approval for an attempt' USING ERRCODE = 'RT010';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER approved AFTER INSERT ON retention.attempts REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION retention.require_approved_attempts();

-- A receipt is for an archive whose source has just gone, under an approval that still covers one more.
CREATE INDEX receipts_by_approval ON retention.receipts (approval_id, run);
CREATE FUNCTION retention.require_approved_receipts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF EXISTS (
    SELECT FROM added AS n LEFT JOIN retention.attempts AS t ON t.id = n.attempt_id AND t.tenant_id = n.tenant_id
      AND t.instance_id = n.instance_id AND t.epoch = n.epoch AND t.state = 'source_deleted'
    WHERE t.id IS NULL OR n.deleted_at NOT BETWEEN transaction_timestamp() AND clock_timestamp()) THEN
    RAISE EXCEPTION 'a receipt without its archive' USING ERRCODE = 'RT003';
  END IF;
  IF EXISTS (
    SELECT FROM (SELECT DISTINCT n.tenant_id, n.approval_id, n.run, a.job, a.max_items, n.actor = a.actor AS named,
        CASE WHEN a.subject IS NOT NULL THEN n.instance_id END AS about
      FROM added AS n LEFT JOIN retention.approvals AS a ON a.id = n.approval_id) AS n
    WHERE n.job IS NULL OR n.job NOT IN ('reconcile', 'archive') OR NOT n.named
      OR NOT retention.approved(n.tenant_id, n.approval_id, n.run, n.job, n.about)
      OR n.max_items < (SELECT count(*) FROM retention.receipts AS r WHERE r.approval_id = n.approval_id AND r.run = n.run)) THEN
    RAISE EXCEPTION 'no approval for a deletion' USING ERRCODE = 'RT010';
  END IF;
  -- G1: only the explicit path takes a held instance, and `require_receipt` sees its holds bound (A9).
  IF EXISTS (
    SELECT FROM (
      SELECT DISTINCT ON (h.instance_id, h.matter) h.action
      FROM added AS n JOIN retention.approvals AS a ON a.id = n.approval_id AND a.job <> 'archive'
      JOIN retention.hold_events AS h ON h.tenant_id = n.tenant_id AND h.instance_id = n.instance_id
      ORDER BY h.instance_id, h.matter, h.id DESC) AS latest
    WHERE latest.action = 'hold') THEN
    RAISE EXCEPTION 'a legal hold keeps an instance' USING ERRCODE = 'RT040';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER approved AFTER INSERT ON retention.receipts REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION retention.require_approved_receipts();

-- Rows come back into the source only while a restore of their instance is approved and under way.
CREATE FUNCTION retention.restoring(instance text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT EXISTS (
    SELECT FROM retention.attempts AS t
    JOIN retention.approvals AS a ON a.tenant_id = t.tenant_id AND a.job = 'restore' AND a.subject = t.id::text
    JOIN retention.approval_uses AS u ON u.approval_id = a.id AND u.tenant_id = a.tenant_id
    WHERE t.tenant_id = retention.current_tenant() AND t.instance_id = instance
      AND a.expires_at > clock_timestamp() AND u.at > clock_timestamp() - interval '1 hour')
$$;
REVOKE EXECUTE ON FUNCTION retention.restoring(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.restoring(text) TO retention_worker;

CREATE FUNCTION retention.require_approved_restoration() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF NOT retention.restoring(NEW.instance_id) THEN
    RAISE EXCEPTION 'no approval for a restore' USING ERRCODE = 'RT010';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER approved BEFORE INSERT ON retention.restorations
FOR EACH ROW EXECUTE FUNCTION retention.require_approved_restoration();

-- An attempt goes forward, and what it says of its object never changes. SQLSTATE RT011.
CREATE FUNCTION retention.refuse_transition() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'an attempt does not go from % to %', OLD.state, NEW.state USING ERRCODE = 'RT011';
END $$;
CREATE TRIGGER goes_forward BEFORE UPDATE ON retention.attempts FOR EACH ROW WHEN (
  (NEW.id, NEW.tenant_id, NEW.instance_id, NEW.epoch, NEW.epoch_at, NEW.approval_id, NEW.job, NEW.run, NEW.profile_generation,
    NEW.archive_retention_days, NEW.key_id, NEW.object_key, NEW.object_size, NEW.object_sha256, NEW.plaintext_size,
    NEW.manifest_digest, NEW.manifest_format, NEW.fingerprint, NEW.shared_digest, NEW.rows_by_table, NEW.intended_at)
  IS DISTINCT FROM
  (OLD.id, OLD.tenant_id, OLD.instance_id, OLD.epoch, OLD.epoch_at, OLD.approval_id, OLD.job, OLD.run, OLD.profile_generation,
    OLD.archive_retention_days, OLD.key_id, OLD.object_key, OLD.object_size, OLD.object_sha256, OLD.plaintext_size,
    OLD.manifest_digest, OLD.manifest_format, OLD.fingerprint, OLD.shared_digest, OLD.rows_by_table, OLD.intended_at)
  OR (OLD.object_version IS NOT NULL AND NEW.object_version IS DISTINCT FROM OLD.object_version)
  OR NOT (OLD.state = NEW.state OR (OLD.state, NEW.state) IN (
    ('intended', 'stored'), ('stored', 'verified'), ('verified', 'source_deleted'),
    ('intended', 'superseded'), ('intended', 'conflict'), ('intended', 'abandoned'),
    ('stored', 'superseded'), ('stored', 'conflict'), ('stored', 'abandoned'),
    ('verified', 'superseded'), ('verified', 'conflict'), ('verified', 'abandoned'),
    ('source_deleted', 'expiring'), ('expiring', 'source_deleted'), ('expiring', 'tombstone'),
    ('superseded', 'expiring'), ('conflict', 'expiring'), ('abandoned', 'expiring'),
    ('superseded', 'tombstone'), ('conflict', 'tombstone'), ('abandoned', 'tombstone'))))
EXECUTE FUNCTION retention.refuse_transition();

-- The catalog opts the root in: at the end of a transaction that deleted it, its receipt of this very transaction stands.
CREATE FUNCTION retention.require_receipt() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  gone jsonb := to_jsonb(OLD);
BEGIN
  IF NOT EXISTS (
    SELECT FROM retention.receipts WHERE tenant_id = gone ->> TG_ARGV[0] AND instance_id = gone ->> TG_ARGV[1]
      AND deleted_at >= transaction_timestamp()) THEN
    RAISE EXCEPTION 'no receipt of this transaction stands for this row' USING ERRCODE = 'RT003',
      HINT = 'instances end through retention alone: archive, verify, delete';
  END IF;
  IF EXISTS (
    SELECT FROM (
      SELECT DISTINCT ON (matter) id, action FROM retention.hold_events
      WHERE tenant_id = gone ->> TG_ARGV[0] AND instance_id = gone ->> TG_ARGV[1] ORDER BY matter, id DESC) AS latest
    WHERE latest.action = 'hold' AND NOT EXISTS (
      SELECT FROM retention.hold_bindings AS b JOIN retention.receipts AS r ON r.attempt_id = b.attempt_id
      WHERE b.hold_event_id = latest.id AND r.tenant_id = gone ->> TG_ARGV[0] AND r.instance_id = gone ->> TG_ARGV[1])) THEN
    RAISE EXCEPTION 'a legal hold is not bound to the archive' USING ERRCODE = 'RT040';
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION retention.refuse_truncation() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'no archive stands for the rows of %', TG_TABLE_NAME USING ERRCODE = 'RT003',
    HINT = 'instances end through retention alone: archive, verify, delete';
END $$;

-- G8: what a preflight saw of the policies. A period that was shortened is not believed at once.
CREATE TABLE retention.policy_observations (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  policy_key text NOT NULL,
  said text NOT NULL,  -- the period as it was written, inherited ones included; 'none': kept without limit
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.policy_observations (tenant_id, policy_key, id DESC);
ALTER TABLE retention.preflights ADD COLUMN cooling_off bigint NOT NULL DEFAULT 0;

ALTER TABLE retention.policy_observations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_own_tenant ON retention.policy_observations TO retention_worker
  USING (tenant_id = (SELECT retention.current_tenant()));
CREATE POLICY operator_reads ON retention.policy_observations FOR SELECT TO retention_operator
  USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:read')));
CREATE POLICY counter_all_tenants ON retention.policy_observations FOR SELECT TO retention_counter USING (true);
GRANT SELECT, INSERT ON retention.policy_observations TO retention_worker;
GRANT SELECT ON retention.policy_observations TO retention_operator;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.policy_observations
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.policy_observations
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();

-- What the definer functions need, and no more.
GRANT SELECT ON retention.approvals, retention.approval_uses, retention.receipts, retention.hold_bindings TO retention_counter;
GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.follow_generations() OWNER TO retention_counter;
ALTER FUNCTION retention.stamp() OWNER TO retention_counter;
ALTER FUNCTION retention.approved(text, uuid, text, text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.require_good_approval() OWNER TO retention_counter;
ALTER FUNCTION retention.require_approved_attempts() OWNER TO retention_counter;
ALTER FUNCTION retention.require_approved_receipts() OWNER TO retention_counter;
ALTER FUNCTION retention.restoring(text) OWNER TO retention_counter;
ALTER FUNCTION retention.require_approved_restoration() OWNER TO retention_counter;
ALTER FUNCTION retention.require_receipt() OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
