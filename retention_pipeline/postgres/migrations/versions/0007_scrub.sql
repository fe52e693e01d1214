-- Archives read again (A19): what each reading found, where the next one begins, and objects that no record names.

ALTER TABLE retention.approvals DROP CONSTRAINT approvals_job_check;
ALTER TABLE retention.approvals ADD CONSTRAINT approvals_job_check CHECK (job IN (
  'reconcile', 'archive', 'restore', 'expire', 'recovery_cancel', 'store_detach', 'scrub_remove'));

CREATE OR REPLACE FUNCTION retention.approval_permission(job text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT CASE job WHEN 'reconcile' THEN 'workflow_retention:reconcile' WHEN 'archive' THEN 'workflow_retention:archive'
    WHEN 'restore' THEN 'workflow_retention:restore' WHEN 'expire' THEN 'workflow_retention:archive'
    WHEN 'recovery_cancel' THEN 'workflow_recovery:cancel' WHEN 'store_detach' THEN 'workflow_retention:archive'
    WHEN 'scrub_remove' THEN 'workflow_retention:archive' END
$$;

-- Where an archive stands on the circle that scrubbing goes round, from 0 to 2^32 - 1: the same for ever, and evenly spread,
-- so that a slice of the circle is a fair sample and what is added meanwhile moves nothing. A column, since row-level security
-- lets no index serve a function that could leak.
ALTER TABLE retention.attempts ADD COLUMN scrub_point bigint GENERATED ALWAYS AS (
  ('x' || left(encode(sha256(uuid_send(id)), 'hex'), 8))::bit(32)::bigint) STORED;
CREATE INDEX archives_by_point ON retention.attempts (tenant_id, scrub_point, id)
  WHERE verified_at IS NOT NULL AND object_deleted_at IS NULL;
CREATE INDEX archives_by_name ON retention.attempts (tenant_id, object_key COLLATE "C")
  WHERE verified_at IS NOT NULL AND object_deleted_at IS NULL;

CREATE TABLE retention.scrub_results (  -- one row for each archive: when it was read again last, and what that found
  attempt_id uuid PRIMARY KEY REFERENCES retention.attempts,
  tenant_id text NOT NULL,
  verdict text NOT NULL CHECK (verdict IN ('intact', 'missing', 'changed', 'unreadable', 'unlocked', 'keys_destroyed')),
  code text,
  since timestamptz NOT NULL DEFAULT clock_timestamp(),  -- it has been so
  proven_at timestamptz,  -- read to its end, and proven
  run text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.scrub_results (tenant_id, at);
CREATE INDEX scrub_findings ON retention.scrub_results (tenant_id) WHERE verdict NOT IN ('intact', 'keys_destroyed');

CREATE TABLE retention.scrub_positions (  -- the next run begins behind this
  tenant_id text PRIMARY KEY,
  point bigint NOT NULL CHECK (point BETWEEN 0 AND 4294967295),
  archive uuid NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE retention.scrub_runs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  run text NOT NULL,
  slice integer NOT NULL,
  slices integer NOT NULL CHECK (slices > 0 AND slice BETWEEN 1 AND slices),
  finished boolean NOT NULL,  -- the slice was read to its end
  archives bigint NOT NULL,
  bytes bigint NOT NULL,
  verdicts jsonb NOT NULL,
  listed bigint NOT NULL,
  listed_whole boolean NOT NULL,
  unknown bigint NOT NULL,
  started_at timestamptz NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.scrub_runs (tenant_id, id DESC);

CREATE TABLE retention.unknown_objects (  -- an object version that no record names, for as long as it is there
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  tenant_id text NOT NULL,
  profile_generation integer NOT NULL,
  object_key text NOT NULL,
  object_version text NOT NULL,
  object_size bigint NOT NULL,  -- as the store says
  first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_run text NOT NULL,
  removing_at timestamptz,  -- somebody asked for it, and its deletion has begun
  approval_id uuid REFERENCES retention.approvals,
  removal_run text,
  code text,  -- why it could not be removed
  FOREIGN KEY (tenant_id, profile_generation) REFERENCES retention.profiles
);
CREATE UNIQUE INDEX one_row_each ON retention.unknown_objects (tenant_id, profile_generation, object_key, object_version);
CREATE INDEX ON retention.unknown_objects (tenant_id, first_seen);

-- Whether a record of any tenant and generation names an object. A store's walk may begin above the place that a record means,
-- since prefixes can lie in each other and tenants can share a bucket; names are random, so that the end of a key is enough.
-- What is intended is on record before it is written (A5). Anchors, copies of keys and probes are the product's own folders.
CREATE FUNCTION retention.is_named(key text, version text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT split_part(o.own, '/', 1) IN ('audit', 'keys', 'readiness') OR EXISTS (
    SELECT FROM retention.attempts AS a WHERE a.object_key = o.own
      AND (a.object_version = version OR a.object_version IS NULL AND a.state = 'intended'))
  FROM (SELECT coalesce(substring(key FROM '[^/]+/[^/]+$'), key) AS own) AS o
$$;
REVOKE EXECUTE ON FUNCTION retention.is_named(text, text) FROM PUBLIC;

-- The database's own lock on the end of an unknown object: SQLSTATE RT060 is too early, RT061 a record that names it.
CREATE FUNCTION retention.guard_unknown_object() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF (NEW.id, NEW.tenant_id, NEW.profile_generation, NEW.object_key, NEW.object_version, NEW.first_seen)
    IS DISTINCT FROM (OLD.id, OLD.tenant_id, OLD.profile_generation, OLD.object_key, OLD.object_version, OLD.first_seen) THEN
    RAISE EXCEPTION 'what an unknown object is, and since when it was seen, never changes' USING ERRCODE = '42501';
  END IF;
  IF NEW.removing_at IS NOT NULL AND (NEW.removing_at, NEW.approval_id, NEW.removal_run)
    IS DISTINCT FROM (OLD.removing_at, OLD.approval_id, OLD.removal_run) THEN
    IF NEW.first_seen > clock_timestamp() - interval '24 hours' THEN
      RAISE EXCEPTION 'the object was first seen less than a day ago' USING ERRCODE = 'RT060';
    ELSIF retention.is_named(NEW.object_key, NEW.object_version) THEN
      RAISE EXCEPTION 'a record names the object' USING ERRCODE = 'RT061';
    ELSIF NOT coalesce(retention.approved(NEW.tenant_id, NEW.approval_id, NEW.removal_run, 'scrub_remove', NULL), false) THEN
      RAISE EXCEPTION 'no approval for the removal of an object' USING ERRCODE = 'RT010';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard_unknown_object BEFORE UPDATE ON retention.unknown_objects
FOR EACH ROW EXECUTE FUNCTION retention.guard_unknown_object();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.scrub_runs
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.scrub_runs
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['scrub_results', 'scrub_positions', 'scrub_runs', 'unknown_objects'] LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY worker_own_tenant ON retention.%I TO retention_worker USING (tenant_id = (SELECT retention.current_tenant()))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_worker', name);
    EXECUTE format('CREATE POLICY counter_all_tenants ON retention.%I FOR SELECT TO retention_counter USING (true)', name);
    EXECUTE format('CREATE POLICY operator_reads ON retention.%I FOR SELECT TO retention_operator USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted(''workflow_retention:read'')))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_operator', name);
  END LOOP;
END $$;
GRANT INSERT, UPDATE ON retention.scrub_results, retention.scrub_positions TO retention_worker;
GRANT INSERT ON retention.scrub_runs TO retention_worker;
-- The instant at which it was first seen is the database's to say.
GRANT INSERT (tenant_id, profile_generation, object_key, object_version, object_size, last_run),
  UPDATE (object_size, last_run, removing_at, approval_id, removal_run, code), DELETE ON retention.unknown_objects TO retention_worker;

GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.is_named(text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.guard_unknown_object() OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
GRANT EXECUTE ON FUNCTION retention.is_named(text, text) TO retention_worker;
