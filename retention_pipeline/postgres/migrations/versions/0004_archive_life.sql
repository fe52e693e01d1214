-- What happens to an archive after its source is gone: locks, expiry, tombstones.

ALTER TABLE retention.attempts
  ADD COLUMN expiring_at timestamptz,        -- our own deletion of the object has begun,
  ADD COLUMN expiry_approval_id uuid REFERENCES retention.approvals,  -- under this approval,
  ADD COLUMN expiry_run text,                                         -- which this run had taken
  ADD COLUMN object_deleted_at timestamptz;  -- it is gone, and a listing said so
CREATE INDEX archives_by_deletion ON retention.attempts (tenant_id, source_deleted_at) WHERE state = 'source_deleted';
CREATE INDEX archives_by_approval ON retention.attempts (expiry_approval_id, expiry_run) WHERE expiry_approval_id IS NOT NULL;
CREATE INDEX archives_off_the_path ON retention.attempts (tenant_id, ended_at)
  WHERE state IN ('superseded', 'conflict', 'abandoned') AND object_version IS NOT NULL AND object_deleted_at IS NULL;

CREATE TABLE retention.expiry_waits (  -- a due archive that stays: why, and when to look again
  attempt_id uuid PRIMARY KEY REFERENCES retention.attempts,
  tenant_id text NOT NULL,
  code text NOT NULL,
  failures integer NOT NULL DEFAULT 1,
  not_before timestamptz NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.expiry_waits (tenant_id);

CREATE TABLE retention.expiry_acknowledgements (  -- a person accepted how many archives are due
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  archives bigint NOT NULL CHECK (archives >= 0),
  due bigint NOT NULL CHECK (due >= 0),
  reason text NOT NULL CHECK (reason ~ '\S'),
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.expiry_acknowledgements (tenant_id, id DESC);

-- What the provider must be told of an archive's period or holds. A row is only a reminder: what is told is read when it is
-- told. Rows are added, never changed by whoever adds them, so that a hold waits for no store.
CREATE TABLE retention.object_lock_tasks (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  attempt_id uuid NOT NULL REFERENCES retention.attempts,
  cause text NOT NULL CHECK (cause IN ('period', 'hold')),
  failures integer NOT NULL DEFAULT 0,
  code text,
  not_before timestamptz NOT NULL DEFAULT '-infinity',
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.object_lock_tasks (tenant_id, not_before);
CREATE INDEX readiness_that_locks ON retention.readiness_events (tenant_id, profile_generation) WHERE locks;
CREATE INDEX ON retention.object_lock_tasks (attempt_id);

-- Whoever reads an archive shares this lock; whoever ends its object has it alone (F20).
CREATE FUNCTION retention.archive_lock(tenant text, archive uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT hashtextextended(tenant || chr(31) || archive::text, 20260102)
$$;
-- One worker at a time tells the provider about one archive.
CREATE FUNCTION retention.object_lock_lock(tenant text, archive uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT hashtextextended(tenant || chr(31) || archive::text, 20260103)
$$;

CREATE FUNCTION retention.is_held(tenant text, instance text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT coalesce(bool_or(latest.action = 'hold'), false) FROM (
    SELECT DISTINCT ON (matter) action FROM retention.hold_events
    WHERE tenant_id = tenant AND instance_id = instance ORDER BY matter, id DESC) AS latest
$$;
REVOKE EXECUTE ON FUNCTION retention.is_held(text, text) FROM PUBLIC;

-- A hold comes too late when nothing is left that it could keep: no row of the instance, and no archive whose deletion has
-- not begun. It waits for the lock that a deletion in progress has, and so is told how that one ended.
CREATE OR REPLACE FUNCTION retention.place_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(retention.instance_lock(NEW.tenant_id, NEW.instance_id));
  -- A hold on a misspelt id would protect nothing, and nobody would know; who may not hold is refused by the policy.
  IF NEW.action = 'hold' AND retention.permitted('workflow_retention:legal_hold')
    AND retention.resolve_instance(NEW.instance_id) IS DISTINCT FROM NEW.instance_id THEN
    RAISE EXCEPTION 'the tenant never had an instance of exactly this id' USING ERRCODE = 'RT042';
  END IF;
  IF NEW.action = 'hold' AND EXISTS (
    SELECT FROM retention.attempts AS a
    WHERE a.tenant_id = NEW.tenant_id AND a.instance_id = NEW.instance_id
      AND a.state IN ('expiring', 'tombstone')
      AND NOT EXISTS (SELECT FROM retention.attempts AS b WHERE b.tenant_id = a.tenant_id
        AND b.instance_id = a.instance_id AND b.state = 'source_deleted')) THEN
    IF NOT retention.instance_present(NEW.tenant_id, NEW.instance_id) THEN
      RAISE EXCEPTION 'the archive of this instance is being deleted or gone' USING ERRCODE = 'RT001';
    END IF;
  END IF;
  RETURN NEW;
END $$;

-- The database's own lock on an archive's end: whatever a worker asks for (A10).
CREATE FUNCTION retention.guard_archive_life() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF OLD.state = 'tombstone' OR OLD.object_deleted_at IS NOT NULL
    OR (NEW.state = 'tombstone' AND OLD.state <> 'expiring')
    OR NEW.archive_retention_days <> OLD.archive_retention_days
    OR (OLD.source_deleted_at IS NOT NULL AND NEW.source_deleted_at IS DISTINCT FROM OLD.source_deleted_at) THEN
    RAISE EXCEPTION 'what was captured of an archive never changes, and a tombstone is its end' USING ERRCODE = 'RT041';
  END IF;
  -- The period counts from what really was the deletion, and a proof is of the past; a minute is for a clock that is set.
  IF NEW.verified_at > clock_timestamp() + interval '1 minute'
    OR OLD.source_deleted_at IS NULL AND NEW.source_deleted_at NOT BETWEEN
      transaction_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'
    OR OLD.ended_at IS DISTINCT FROM NEW.ended_at AND NEW.ended_at NOT BETWEEN
      transaction_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute' THEN
    RAISE EXCEPTION 'what happens to an archive happens now' USING ERRCODE = 'RT041';
  END IF;
  IF NEW.expiring_at IS NOT NULL AND OLD.expiring_at IS NULL THEN
    IF retention.is_held(NEW.tenant_id, NEW.instance_id) THEN
      RAISE EXCEPTION 'a legal hold keeps the archive' USING ERRCODE = 'RT040';
    END IF;
    IF (CASE NEW.state
      WHEN 'expiring' THEN NEW.archive_retention_days = 0
        OR NEW.source_deleted_at + make_interval(hours => 24 * NEW.archive_retention_days) > clock_timestamp()
      WHEN 'superseded' THEN coalesce(NEW.ended_at + make_interval(hours => 24 * 30) > clock_timestamp(), true)
      WHEN 'conflict' THEN coalesce(NEW.ended_at + make_interval(hours => 24 * 30) > clock_timestamp(), true)
      WHEN 'abandoned' THEN coalesce(NEW.ended_at + make_interval(hours => 24 * 30) > clock_timestamp(), true)
      ELSE true END) THEN
      RAISE EXCEPTION 'the period of the archive is not over' USING ERRCODE = 'RT041';
    END IF;
    IF NOT coalesce(retention.approved(NEW.tenant_id, NEW.expiry_approval_id, NEW.expiry_run, 'expire', NULL), false)
      OR (SELECT count(*) FROM retention.attempts WHERE expiry_approval_id = NEW.expiry_approval_id
        AND expiry_run = NEW.expiry_run) >= (SELECT max_items FROM retention.approvals WHERE id = NEW.expiry_approval_id) THEN
      RAISE EXCEPTION 'no approval for the end of an archive' USING ERRCODE = 'RT010';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard_archive_life BEFORE UPDATE ON retention.attempts FOR EACH ROW
WHEN (OLD.state <> NEW.state AND (NEW.state IN ('expiring', 'tombstone') OR OLD.state = 'tombstone')
  OR OLD.expiring_at IS DISTINCT FROM NEW.expiring_at OR OLD.object_deleted_at IS DISTINCT FROM NEW.object_deleted_at
  OR OLD.archive_retention_days <> NEW.archive_retention_days
  OR OLD.source_deleted_at IS DISTINCT FROM NEW.source_deleted_at OR OLD.verified_at IS DISTINCT FROM NEW.verified_at
  OR OLD.ended_at IS DISTINCT FROM NEW.ended_at)
EXECUTE FUNCTION retention.guard_archive_life();

-- A reminder for each archive that the provider can lock: its readiness found that the bucket can.
CREATE FUNCTION retention.remind_of_locks(tenant text, instance text, only_one uuid, why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM retention.readiness_events WHERE tenant_id = tenant AND locks) THEN
    RETURN;  -- no store of this tenant can lock: the usual case, and a deletion of many has to be quick
  END IF;
  INSERT INTO retention.object_lock_tasks (tenant_id, attempt_id, cause)
  SELECT a.tenant_id, a.id, why FROM retention.attempts AS a
  WHERE a.tenant_id = tenant AND a.instance_id = instance AND (only_one IS NULL OR a.id = only_one)
    AND a.state IN ('source_deleted', 'superseded', 'conflict', 'abandoned')
    AND a.object_version IS NOT NULL AND a.object_deleted_at IS NULL
    AND EXISTS (SELECT FROM retention.readiness_events AS r WHERE r.tenant_id = a.tenant_id
      AND r.profile_generation = a.profile_generation AND r.locks);
END $$;
REVOKE EXECUTE ON FUNCTION retention.remind_of_locks(text, text, uuid, text) FROM PUBLIC;

CREATE FUNCTION retention.remind_after_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM retention.remind_of_locks(NEW.tenant_id, NEW.instance_id, NEW.id, 'period');
  RETURN NULL;
END $$;
CREATE TRIGGER remind_of_locks AFTER UPDATE ON retention.attempts FOR EACH ROW
WHEN (OLD.state <> NEW.state AND NEW.state IN ('source_deleted', 'superseded', 'conflict', 'abandoned'))
EXECUTE FUNCTION retention.remind_after_change();

CREATE FUNCTION retention.remind_after_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM retention.remind_of_locks(NEW.tenant_id, NEW.instance_id, NULL, 'hold');
  RETURN NULL;
END $$;
CREATE TRIGGER remind_of_locks AFTER INSERT ON retention.hold_events
FOR EACH ROW EXECUTE FUNCTION retention.remind_after_hold();

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.expiry_acknowledgements
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.expiry_acknowledgements
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER actor BEFORE INSERT ON retention.expiry_acknowledgements
FOR EACH ROW EXECUTE FUNCTION retention.in_ones_own_name('actor');
CREATE TRIGGER audit AFTER INSERT ON retention.expiry_acknowledgements
FOR EACH ROW EXECUTE FUNCTION retention.audit_act('expiry_acknowledgement', 'due');
-- Nobody accepts more than is there: an acknowledgement of any number would take the brake off for good (G8).
CREATE FUNCTION retention.accept_what_is_there() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF greatest(NEW.due, NEW.archives) > (SELECT count(*) FROM retention.attempts AS a
    WHERE a.tenant_id = NEW.tenant_id AND a.object_version IS NOT NULL AND a.object_deleted_at IS NULL) THEN
    RAISE EXCEPTION 'more archives are accepted than there are' USING ERRCODE = '23514';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER accept_what_is_there AFTER INSERT ON retention.expiry_acknowledgements
FOR EACH ROW EXECUTE FUNCTION retention.accept_what_is_there();
CREATE TRIGGER stamp BEFORE INSERT ON retention.expiry_acknowledgements FOR EACH ROW EXECUTE FUNCTION retention.stamp('id');
GRANT USAGE ON SEQUENCE retention.expiry_acknowledgements_id_seq TO retention_counter;

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['expiry_waits', 'expiry_acknowledgements', 'object_lock_tasks'] LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY worker_own_tenant ON retention.%I TO retention_worker USING (tenant_id = (SELECT retention.current_tenant()))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_worker', name);
    EXECUTE format('CREATE POLICY counter_all_tenants ON retention.%I FOR SELECT TO retention_counter USING (true)', name);
    EXECUTE format('CREATE POLICY operator_reads ON retention.%I FOR SELECT TO retention_operator USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted(''workflow_retention:read'')))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_operator', name);
  END LOOP;
END $$;
CREATE POLICY operator_acknowledges ON retention.expiry_acknowledgements FOR INSERT TO retention_operator WITH CHECK (
  tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:archive')));
GRANT INSERT ON retention.expiry_acknowledgements TO retention_operator;
GRANT INSERT, UPDATE, DELETE ON retention.expiry_waits TO retention_worker;
GRANT UPDATE, DELETE ON retention.object_lock_tasks TO retention_worker;
CREATE POLICY counter_reminds ON retention.object_lock_tasks FOR INSERT TO retention_counter WITH CHECK (true);
GRANT INSERT ON retention.object_lock_tasks TO retention_counter;

GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.accept_what_is_there() OWNER TO retention_counter;
ALTER FUNCTION retention.is_held(text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.guard_archive_life() OWNER TO retention_counter;
ALTER FUNCTION retention.remind_of_locks(text, text, uuid, text) OWNER TO retention_counter;
ALTER FUNCTION retention.remind_after_change() OWNER TO retention_counter;
ALTER FUNCTION retention.remind_after_hold() OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
GRANT EXECUTE ON FUNCTION retention.is_held(text, text) TO retention_worker;
