-- The life of keys: wrapped anew, rotated, copied beside the archives, destroyed (A17, A18).

ALTER TABLE retention.tenant_keys
  ALTER COLUMN ciphertext DROP NOT NULL,
  ADD COLUMN revision integer NOT NULL DEFAULT 1,  -- one more with each time that the key is wrapped anew
  ADD COLUMN wrapped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ADD COLUMN destroyed_at timestamptz,
  ADD CONSTRAINT destroyed_is_gone CHECK ((ciphertext IS NULL) = (destroyed_at IS NOT NULL));
-- What was wrapped under an older root, or is destroyed, does not wait in dead rows for hours.
ALTER TABLE retention.tenant_keys SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX attempts_by_key ON retention.attempts (key_id, profile_generation) WHERE object_deleted_at IS NULL;
CREATE INDEX ON retention.secrets (tenant_id, key_id);

CREATE TABLE retention.key_destructions (  -- from here on there is no way back for these generations
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  through_generation integer NOT NULL,
  archives_too boolean NOT NULL,
  reason text NOT NULL CHECK (reason ~ '\S'),
  correlation text NOT NULL,
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.key_destructions (tenant_id, through_generation DESC);

CREATE TABLE retention.key_copies (  -- wrapped keys as objects beside the archives; on record before they are written (A5)
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  key_id text NOT NULL REFERENCES retention.tenant_keys (key_id),
  revision integer NOT NULL,
  root_key_id text NOT NULL,
  profile_generation integer NOT NULL,
  object_key text NOT NULL UNIQUE,
  object_version text,  -- none: about to be written
  ended_at timestamptz,  -- the object is gone
  left_behind_at timestamptz,  -- a destruction went on without the store: nobody waits for it any more
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  FOREIGN KEY (tenant_id, profile_generation) REFERENCES retention.profiles
);
CREATE UNIQUE INDEX one_copy_of_a_revision ON retention.key_copies (key_id, profile_generation, revision) WHERE ended_at IS NULL;
CREATE INDEX ON retention.key_copies (tenant_id) WHERE ended_at IS NULL;

-- A manager of keys lets the worker wrap everything anew under one root, for a day: the database can't tell a wrapped key from
-- rubbish, so whoever may say yes is not who puts it there, and the worker, who opens it first, does nothing without the yes (G4).
CREATE TABLE retention.root_rotations (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  root_key_id text NOT NULL,
  reason text NOT NULL CHECK (reason ~ '\S'),
  correlation text NOT NULL,
  actor text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON retention.root_rotations (root_key_id, id DESC);

-- A destruction and a hold of one tenant take turns.
CREATE FUNCTION retention.tenant_keys_lock(tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT hashtextextended(tenant, 20260104)
$$;

CREATE FUNCTION retention.is_doomed(tenant text, wanted_generation integer) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT EXISTS (SELECT FROM retention.key_destructions
    WHERE tenant_id = tenant AND through_generation >= wanted_generation)
$$;
REVOKE EXECUTE ON FUNCTION retention.is_doomed(text, integer) FROM PUBLIC;

-- Which key still lacks a copy in which store: the newest one, and those with archives under the key.
CREATE VIEW retention.key_copies_due WITH (security_invoker = true) AS
SELECT k.tenant_id, k.key_id, k.generation, k.root_key_id, k.revision, p.generation AS profile_generation
FROM retention.tenant_keys AS k JOIN retention.profiles AS p ON p.tenant_id = k.tenant_id
WHERE k.destroyed_at IS NULL
  AND NOT EXISTS (SELECT FROM retention.key_destructions AS d
    WHERE d.tenant_id = k.tenant_id AND d.through_generation >= k.generation)
  AND NOT EXISTS (SELECT FROM retention.key_copies AS c WHERE c.key_id = k.key_id AND c.profile_generation = p.generation
    AND c.revision = k.revision AND c.object_version IS NOT NULL AND c.ended_at IS NULL)
  AND EXISTS (SELECT FROM retention.readiness_events AS r
    WHERE r.tenant_id = p.tenant_id AND r.profile_generation = p.generation AND r.ready)
  AND (p.generation = (SELECT max(q.generation) FROM retention.profiles AS q WHERE q.tenant_id = p.tenant_id)
    OR EXISTS (SELECT FROM retention.attempts AS a WHERE a.key_id = k.key_id AND a.profile_generation = p.generation
      AND a.object_version IS NOT NULL AND a.object_deleted_at IS NULL));

-- Copies of what the key no longer is: the last ones before it was wrapped anew, once the new one is there; all, once it is doomed.
CREATE VIEW retention.key_copies_stale WITH (security_invoker = true) AS
SELECT c.tenant_id, c.id, c.profile_generation, c.object_key, c.object_version, c.left_behind_at
FROM retention.key_copies AS c JOIN retention.tenant_keys AS k ON k.key_id = c.key_id
WHERE c.ended_at IS NULL AND (
  k.destroyed_at IS NOT NULL
  OR EXISTS (SELECT FROM retention.key_destructions AS d
    WHERE d.tenant_id = k.tenant_id AND d.through_generation >= k.generation)
  OR (c.revision <> k.revision AND NOT EXISTS (SELECT FROM retention.key_copies_due AS due
    WHERE due.key_id = c.key_id AND due.profile_generation = c.profile_generation)));

CREATE FUNCTION retention.tenants_with_key_copies_due() RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT tenant_id FROM retention.key_copies_due
  UNION SELECT tenant_id FROM retention.key_copies_stale WHERE left_behind_at IS NULL ORDER BY 1
$$;
REVOKE EXECUTE ON FUNCTION retention.tenants_with_key_copies_due() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.tenants_with_key_copies_due() TO retention_worker;

-- What a key's manager may ask ----------------------------------------------------------------------------------------

CREATE FUNCTION retention.require_key_manager(everywhere boolean) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
  IF NOT (CASE WHEN everywhere THEN retention.permitted_everywhere('workflow_retention:key_manage')
    ELSE retention.permitted('workflow_retention:key_manage') END) THEN
    RAISE EXCEPTION 'not a manager of keys' USING ERRCODE = '42501';
  END IF;
END $$;
REVOKE EXECUTE ON FUNCTION retention.require_key_manager(boolean) FROM PUBLIC;

CREATE FUNCTION retention.key_usage() RETURNS TABLE (
  generation integer, made_at timestamptz, days integer, root_key_id text, destroyed_at timestamptz, doomed boolean,
  archives bigint, in_flight bigint, secrets bigint, copies bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
#variable_conflict use_column
BEGIN
  PERFORM retention.require_key_manager(false);
  RETURN QUERY
  SELECT k.generation, k.at, extract(day FROM clock_timestamp() - k.at)::integer, k.root_key_id, k.destroyed_at,
    retention.is_doomed(k.tenant_id, k.generation), coalesce(a.archives, 0), coalesce(a.in_flight, 0),
    (SELECT count(DISTINCT s.id) FROM retention.secrets AS s WHERE s.tenant_id = k.tenant_id AND s.key_id = k.key_id),
    (SELECT count(*) FROM retention.key_copies AS c WHERE c.key_id = k.key_id AND c.revision = k.revision
      AND c.object_version IS NOT NULL AND c.ended_at IS NULL)
  FROM retention.tenant_keys AS k LEFT JOIN (
    SELECT t.key_id, count(*) FILTER (WHERE t.object_version IS NOT NULL) AS archives,
      count(*) FILTER (WHERE t.state IN ('intended', 'stored', 'verified')) AS in_flight
    FROM retention.attempts AS t WHERE t.tenant_id = retention.current_tenant() AND t.object_deleted_at IS NULL GROUP BY 1
  ) AS a ON a.key_id = k.key_id
  WHERE k.tenant_id = retention.current_tenant() ORDER BY k.generation;
END $$;

-- What stands in the way of a destruction, and what it would take.
CREATE FUNCTION retention.key_stakes(
  OUT generations bigint, OUT in_flight bigint, OUT holds bigint, OUT kept bigint, OUT archives jsonb, OUT secrets bigint,
  OUT copies bigint, OUT begun_at timestamptz, OUT destroyed bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
#variable_conflict use_column
DECLARE
  tenant text := retention.current_tenant();
BEGIN
  PERFORM retention.require_key_manager(false);
  SELECT count(*) FILTER (WHERE k.destroyed_at IS NULL), count(*) FILTER (WHERE k.destroyed_at IS NOT NULL),
    max(d.at) FILTER (WHERE k.destroyed_at IS NULL) INTO generations, destroyed, begun_at
  FROM retention.tenant_keys AS k LEFT JOIN LATERAL (
    SELECT max(e.at) AS at FROM retention.key_destructions AS e
    WHERE e.tenant_id = k.tenant_id AND e.through_generation >= k.generation) AS d ON true
  WHERE k.tenant_id = tenant;
  SELECT coalesce(sum(s.found) FILTER (WHERE s.state IN ('intended', 'stored', 'verified')), 0), coalesce(sum(s.kept), 0),
    coalesce(jsonb_object_agg(s.state, s.stored) FILTER (WHERE s.stored > 0), '{}') INTO in_flight, kept, archives
  FROM (SELECT a.state, count(*) AS found, count(a.object_version) AS stored,
      count(*) FILTER (WHERE a.state = 'source_deleted' AND (a.archive_retention_days = 0
        OR a.source_deleted_at + make_interval(hours => 24 * a.archive_retention_days) > clock_timestamp())) AS kept
    FROM retention.attempts AS a JOIN retention.tenant_keys AS k ON k.key_id = a.key_id AND k.destroyed_at IS NULL
    WHERE a.tenant_id = tenant AND a.object_deleted_at IS NULL GROUP BY 1) AS s;
  SELECT count(*) INTO holds FROM (
    SELECT DISTINCT ON (h.instance_id, h.matter) h.action FROM retention.hold_events AS h
    WHERE h.tenant_id = tenant ORDER BY h.instance_id, h.matter, h.id DESC) AS latest WHERE latest.action = 'hold';
  SELECT count(DISTINCT s.id) INTO secrets FROM retention.secrets AS s
  JOIN retention.tenant_keys AS k ON k.key_id = s.key_id AND k.destroyed_at IS NULL WHERE s.tenant_id = tenant;
  SELECT count(*) INTO copies FROM retention.key_copies AS c WHERE c.tenant_id = tenant AND c.ended_at IS NULL;
END $$;

-- Which tenants have a key that another root wraps; for whoever manages the keys of all, and the worker.
CREATE FUNCTION retention.tenants_under_other_roots(root text) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  IF NOT pg_has_role(session_user, 'retention_worker', 'MEMBER') THEN
    PERFORM retention.require_key_manager(true);
  END IF;
  RETURN QUERY SELECT DISTINCT k.tenant_id FROM retention.tenant_keys AS k
    WHERE k.destroyed_at IS NULL AND k.root_key_id <> root ORDER BY 1;
END $$;

-- Roots that a key, or a copy of one beside the archives, still needs.
CREATE FUNCTION retention.roots_in_use() RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM retention.require_key_manager(true);
  RETURN QUERY SELECT k.root_key_id FROM retention.tenant_keys AS k WHERE k.destroyed_at IS NULL
    UNION SELECT c.root_key_id FROM retention.key_copies AS c WHERE c.ended_at IS NULL;
END $$;

-- What a key's manager may do -----------------------------------------------------------------------------------------

CREATE FUNCTION retention.audit_key(tenant text, what text, about text, why text, correlation text, details jsonb, who text)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
  INSERT INTO retention.audit_events (tenant_id, actor, kind, subject, outcome, reason, correlation, details)
  VALUES (tenant, who, what, about, 'done', why, left(correlation, 64), details)
$$;
REVOKE EXECUTE ON FUNCTION retention.audit_key(text, text, text, text, text, jsonb, text) FROM PUBLIC;

-- A root key came or went in the keyring, which the database does not see: only how many.
CREATE FUNCTION retention.note_roots(what text, roots integer, why text, correlation text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM retention.require_key_manager(true);
  IF what NOT IN ('root.added', 'root.rotated', 'root.pruned') THEN
    RAISE EXCEPTION 'no such act' USING ERRCODE = '22023';
  END IF;
  PERFORM retention.audit_key('*', what, '', why, correlation, jsonb_build_object('count', roots), session_user);
END $$;

CREATE FUNCTION retention.allow_root_rotation(root text, why text, correlation text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM retention.require_key_manager(true);
  INSERT INTO retention.root_rotations (root_key_id, reason, correlation) VALUES (root, why, left(correlation, 64));
  PERFORM retention.audit_key('*', 'root.rotation_allowed', '', why, correlation, '{}', session_user);
END $$;

-- For the worker. False: another rotation was first.
CREATE FUNCTION retention.rewrap_key(wanted_generation integer, of_revision integer, root text, wrapped bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  allowed record;
BEGIN
  SELECT r.actor, r.reason, r.correlation INTO allowed FROM retention.root_rotations AS r
  WHERE r.root_key_id = root AND r.at > clock_timestamp() - interval '24 hours'
    AND retention.principal_permitted(r.actor, 'workflow_retention:key_manage') ORDER BY r.id DESC LIMIT 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'nobody let keys be wrapped anew under this root' USING ERRCODE = 'RT010';
  END IF;
  UPDATE retention.tenant_keys AS k SET root_key_id = root, ciphertext = wrapped, revision = k.revision + 1,
    wrapped_at = clock_timestamp()
  WHERE k.tenant_id = retention.current_tenant() AND k.generation = wanted_generation AND k.revision = of_revision
    AND k.destroyed_at IS NULL AND k.root_key_id <> root;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM retention.audit_key(retention.current_tenant(), 'key.rewrapped', wanted_generation::text, allowed.reason,
    allowed.correlation, jsonb_build_object('generation', wanted_generation), allowed.actor);
  RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION retention.rewrap_key(integer, integer, text, bytea) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.rewrap_key(integer, integer, text, bytea) TO retention_worker;

-- A new generation, for new objects. False: another one was first.
CREATE FUNCTION retention.add_key(
  new_generation integer, id text, root text, wrapped bytea, why text, correlation text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  tenant text := retention.current_tenant();
BEGIN
  PERFORM retention.require_key_manager(false);
  PERFORM pg_advisory_xact_lock(retention.tenant_keys_lock(tenant));
  IF EXISTS (SELECT FROM retention.tenant_keys AS k WHERE k.tenant_id = tenant AND k.destroyed_at IS NULL
    AND retention.is_doomed(tenant, k.generation)) THEN
    RAISE EXCEPTION 'the keys are being destroyed' USING ERRCODE = 'RT051';
  END IF;
  IF new_generation <> 1 + coalesce((SELECT max(k.generation) FROM retention.tenant_keys AS k WHERE k.tenant_id = tenant), 0) THEN
    RETURN false;
  END IF;
  INSERT INTO retention.tenant_keys (tenant_id, generation, key_id, root_key_id, ciphertext)
  VALUES (tenant, new_generation, id, root, wrapped);
  PERFORM retention.audit_key(tenant, 'key.rotated', new_generation::text, why, correlation,
    jsonb_build_object('generation', new_generation), session_user);
  RETURN true;
END $$;

-- The point of no return: from here on nothing is sealed under these keys, no copy is made, and a hold comes too late.
-- Asked again, it goes on with what was begun. Gives the last generation that goes.
CREATE FUNCTION retention.begin_key_destruction(archives_too boolean, why text, correlation text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  tenant text := retention.current_tenant();
  stakes record;
  last integer;
BEGIN
  PERFORM retention.require_key_manager(false);
  PERFORM pg_advisory_xact_lock(retention.tenant_keys_lock(tenant));
  -- Waits for attempts that are just being recorded: their foreign key shares these rows.
  PERFORM FROM retention.tenant_keys AS k WHERE k.tenant_id = tenant AND k.destroyed_at IS NULL ORDER BY k.generation FOR UPDATE;
  SELECT max(k.generation) INTO last FROM retention.tenant_keys AS k WHERE k.tenant_id = tenant AND k.destroyed_at IS NULL;
  IF last IS NULL OR retention.is_doomed(tenant, last) THEN
    RETURN last;
  END IF;
  SELECT * INTO stakes FROM retention.key_stakes();
  IF stakes.holds > 0 THEN
    RAISE EXCEPTION 'a legal hold of this tenant stands' USING ERRCODE = 'RT052';
  ELSIF stakes.in_flight > 0 THEN
    RAISE EXCEPTION 'archives of this tenant are in flight' USING ERRCODE = 'RT053';
  ELSIF stakes.kept > 0 AND NOT archives_too THEN
    RAISE EXCEPTION 'archives of this tenant are within their period' USING ERRCODE = 'RT054';
  END IF;
  INSERT INTO retention.key_destructions (tenant_id, through_generation, archives_too, reason, correlation)
  VALUES (tenant, last, archives_too, why, left(correlation, 64));
  PERFORM retention.audit_key(tenant, 'key.destruction_begun', last::text, why, correlation, jsonb_build_object(
    'generations', stakes.generations, 'archives', stakes.archives, 'kept', stakes.kept, 'secrets', stakes.secrets,
    'copies', stakes.copies), session_user);
  RETURN last;
END $$;

-- The end of what was begun. Copies beside the archives go first: the keys open the secrets that reach them.
CREATE FUNCTION retention.finish_key_destruction(without_store boolean, correlation text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  tenant text := retention.current_tenant();
  left_behind bigint;
  gone integer;
  why text;
BEGIN
  PERFORM retention.require_key_manager(false);
  PERFORM pg_advisory_xact_lock(retention.tenant_keys_lock(tenant));
  SELECT count(*) INTO left_behind FROM retention.key_copies AS c JOIN retention.tenant_keys AS k ON k.key_id = c.key_id
  WHERE c.tenant_id = tenant AND c.ended_at IS NULL AND retention.is_doomed(tenant, k.generation);
  IF left_behind > 0 AND NOT without_store THEN
    RAISE EXCEPTION 'copies of the keys are left beside the archives' USING ERRCODE = 'RT055';
  END IF;
  UPDATE retention.tenant_keys AS k SET ciphertext = NULL, revision = k.revision + 1, destroyed_at = clock_timestamp()
  WHERE k.tenant_id = tenant AND k.destroyed_at IS NULL AND retention.is_doomed(tenant, k.generation);
  GET DIAGNOSTICS gone = ROW_COUNT;
  IF gone > 0 THEN
    UPDATE retention.key_copies AS c SET left_behind_at = clock_timestamp() FROM retention.tenant_keys AS k
    WHERE k.key_id = c.key_id AND k.destroyed_at IS NOT NULL AND c.tenant_id = tenant AND c.ended_at IS NULL
      AND c.left_behind_at IS NULL;
    SELECT d.reason INTO why FROM retention.key_destructions AS d WHERE d.tenant_id = tenant ORDER BY d.id DESC LIMIT 1;
    PERFORM retention.audit_key(tenant, 'key.destroyed', '', why, correlation,
      jsonb_build_object('generations', gone, 'copies_left', left_behind), session_user);
  END IF;
  RETURN gone;
END $$;

-- What keeps it true ---------------------------------------------------------------------------------------------------

CREATE FUNCTION retention.guard_key() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION 'a key keeps its name, and a destroyed one stays so' USING ERRCODE = '42501';
END $$;
CREATE TRIGGER guard_key BEFORE UPDATE ON retention.tenant_keys FOR EACH ROW WHEN (
  (NEW.tenant_id, NEW.generation, NEW.key_id, NEW.at) IS DISTINCT FROM (OLD.tenant_id, OLD.generation, OLD.key_id, OLD.at)
  OR OLD.destroyed_at IS NOT NULL OR NEW.revision <> OLD.revision + 1)
EXECUTE FUNCTION retention.guard_key();

-- Nothing is sealed under a key that goes: a process may have it in memory still.
CREATE FUNCTION retention.require_standing_keys() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM FROM retention.tenant_keys AS k WHERE k.key_id IN (SELECT n.key_id FROM added AS n) FOR KEY SHARE;
  IF EXISTS (SELECT FROM retention.tenant_keys AS k WHERE k.key_id IN (SELECT n.key_id FROM added AS n)
    AND (k.destroyed_at IS NOT NULL OR retention.is_doomed(k.tenant_id, k.generation))) THEN
    RAISE EXCEPTION 'the key is destroyed' USING ERRCODE = 'RT051';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER standing_keys AFTER INSERT ON retention.attempts REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION retention.require_standing_keys();

-- A hold on what can't be read any more is answered as too late (G1); it waits for a destruction that is being decided.
CREATE FUNCTION retention.refuse_hold_on_destroyed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(retention.tenant_keys_lock(NEW.tenant_id));
  IF EXISTS (SELECT FROM retention.key_destructions WHERE tenant_id = NEW.tenant_id)
    AND EXISTS (SELECT FROM retention.attempts AS a JOIN retention.tenant_keys AS k ON k.key_id = a.key_id
      WHERE a.tenant_id = NEW.tenant_id AND a.instance_id = NEW.instance_id AND a.state = 'source_deleted'
        AND retention.is_doomed(k.tenant_id, k.generation))
    AND NOT EXISTS (SELECT FROM retention.attempts AS a JOIN retention.tenant_keys AS k ON k.key_id = a.key_id
      WHERE a.tenant_id = NEW.tenant_id AND a.instance_id = NEW.instance_id AND a.state = 'source_deleted'
        AND NOT retention.is_doomed(k.tenant_id, k.generation))
    AND NOT retention.instance_present(NEW.tenant_id, NEW.instance_id) THEN
    RAISE EXCEPTION 'the keys of this archive are destroyed' USING ERRCODE = 'RT001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER destroyed_keys BEFORE INSERT ON retention.hold_events FOR EACH ROW WHEN (NEW.action = 'hold')
EXECUTE FUNCTION retention.refuse_hold_on_destroyed();

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.key_destructions
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.key_destructions
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.root_rotations
FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.root_rotations
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();
ALTER TABLE retention.root_rotations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY counter_reads ON retention.root_rotations FOR SELECT TO retention_counter USING (true);
CREATE POLICY counter_allows ON retention.root_rotations FOR INSERT TO retention_counter WITH CHECK (true);
GRANT SELECT, INSERT ON retention.root_rotations TO retention_counter;

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['key_destructions', 'key_copies'] LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY worker_own_tenant ON retention.%I TO retention_worker USING (tenant_id = (SELECT retention.current_tenant()))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_worker', name);
    EXECUTE format('CREATE POLICY counter_all_tenants ON retention.%I FOR SELECT TO retention_counter USING (true)', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_counter', name);
  END LOOP;
END $$;
CREATE POLICY operator_reads ON retention.key_destructions FOR SELECT TO retention_operator
  USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted('workflow_retention:read')));
GRANT SELECT ON retention.key_destructions TO retention_operator;
GRANT INSERT, UPDATE (object_version, ended_at) ON retention.key_copies TO retention_worker;
GRANT SELECT ON retention.key_copies_due, retention.key_copies_stale TO retention_worker, retention_counter;

-- The worker makes a tenant's first key and no other.
CREATE POLICY worker_makes_the_first ON retention.tenant_keys AS RESTRICTIVE FOR INSERT TO retention_worker
  WITH CHECK (generation = 1);

GRANT SELECT (tenant_id, generation, key_id, root_key_id, at, revision, destroyed_at), INSERT,
  UPDATE (root_key_id, ciphertext, revision, wrapped_at, destroyed_at) ON retention.tenant_keys TO retention_counter;
CREATE POLICY counter_adds ON retention.tenant_keys FOR INSERT TO retention_counter WITH CHECK (true);
CREATE POLICY counter_changes ON retention.tenant_keys FOR UPDATE TO retention_counter USING (true);
CREATE POLICY counter_destroys ON retention.key_destructions FOR INSERT TO retention_counter
  WITH CHECK (tenant_id = (SELECT retention.current_tenant()));
GRANT INSERT ON retention.key_destructions TO retention_counter;
GRANT SELECT (key_id) ON retention.secrets TO retention_counter;
GRANT UPDATE (left_behind_at) ON retention.key_copies TO retention_counter;
CREATE POLICY counter_leaves ON retention.key_copies FOR UPDATE TO retention_counter USING (true);

GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.is_doomed(text, integer) OWNER TO retention_counter;
ALTER FUNCTION retention.tenants_with_key_copies_due() OWNER TO retention_counter;
ALTER FUNCTION retention.require_key_manager(boolean) OWNER TO retention_counter;
ALTER FUNCTION retention.key_usage() OWNER TO retention_counter;
ALTER FUNCTION retention.key_stakes() OWNER TO retention_counter;
ALTER FUNCTION retention.tenants_under_other_roots(text) OWNER TO retention_counter;
ALTER FUNCTION retention.roots_in_use() OWNER TO retention_counter;
ALTER FUNCTION retention.allow_root_rotation(text, text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.audit_key(text, text, text, text, text, jsonb, text) OWNER TO retention_counter;
ALTER FUNCTION retention.note_roots(text, integer, text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.rewrap_key(integer, integer, text, bytea) OWNER TO retention_counter;
ALTER FUNCTION retention.add_key(integer, text, text, bytea, text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.begin_key_destruction(boolean, text, text) OWNER TO retention_counter;
ALTER FUNCTION retention.finish_key_destruction(boolean, text) OWNER TO retention_counter;
ALTER FUNCTION retention.require_standing_keys() OWNER TO retention_counter;
ALTER FUNCTION retention.refuse_hold_on_destroyed() OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
