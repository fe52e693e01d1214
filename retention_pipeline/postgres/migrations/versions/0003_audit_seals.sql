-- Audit events sealed in keyed blocks (G5): the outbox of events that wait for a seal, the seals, and where heads were anchored.

CREATE TABLE retention.audit_unsealed (
  tenant_id text NOT NULL,
  event_id bigint NOT NULL,
  PRIMARY KEY (tenant_id, event_id)
);

CREATE TABLE retention.audit_seals (
  tenant_id text NOT NULL,  -- '*': the installation's own chain
  block bigint NOT NULL CHECK (block > 0),
  event_ids bigint[] NOT NULL CHECK (cardinality(event_ids) BETWEEN 1 AND 1000),
  leaves bytea NOT NULL CHECK (octet_length(leaves) = 16 * cardinality(event_ids)),
  previous bytea NOT NULL CHECK (octet_length(previous) = CASE block WHEN 1 THEN 0 ELSE 32 END),
  mac bytea NOT NULL CHECK (octet_length(mac) = 32),
  sealed_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, block)
);
-- Keyed hashes don't compress.
ALTER TABLE retention.audit_seals ALTER COLUMN leaves SET STORAGE EXTERNAL;

CREATE TABLE retention.audit_anchors (  -- a note for "how old is the last one"; `audit verify` asks the store itself
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  block bigint NOT NULL,
  profile_generation integer NOT NULL,
  object_key text NOT NULL,
  object_version text,  -- none: about to be written (A5)
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  FOREIGN KEY (tenant_id, profile_generation) REFERENCES retention.profiles
);
CREATE INDEX ON retention.audit_anchors (tenant_id, id DESC);

-- Membership is exact: a row is in the outbox if and only if its event committed and no block has it. No order of ids or of
-- commits, and no younger cluster after a dump, can lose one.
CREATE FUNCTION retention.note_unsealed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO retention.audit_unsealed (tenant_id, event_id) SELECT tenant_id, id FROM fresh;
  RETURN NULL;
END $$;

-- A block follows its chain, and takes its events out of the outbox; nobody has a privilege to do that in another way.
CREATE FUNCTION retention.take_sealed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
  taken bigint;
BEGIN
  IF NEW.block > 1 AND NOT EXISTS (
    SELECT FROM retention.audit_seals WHERE tenant_id = NEW.tenant_id AND block = NEW.block - 1 AND mac = NEW.previous) THEN
    RAISE EXCEPTION 'a block must follow the last one' USING ERRCODE = 'RT020';
  END IF;
  DELETE FROM retention.audit_unsealed WHERE tenant_id = NEW.tenant_id AND event_id = ANY (NEW.event_ids);
  GET DIAGNOSTICS taken = ROW_COUNT;
  IF taken <> cardinality(NEW.event_ids) THEN
    RAISE EXCEPTION 'a block seals what waits for a seal, once' USING ERRCODE = 'RT021';
  END IF;
  RETURN NULL;
END $$;

-- Who has events that wait for a seal: for the worker alone, so that idle tenants cost nothing.
CREATE FUNCTION retention.audit_backlog() RETURNS TABLE (tenant_id text, unsealed bigint, oldest_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  SELECT w.tenant_id, w.unsealed, extract(epoch FROM clock_timestamp() - e.at)::double precision
  FROM (SELECT u.tenant_id, count(*) AS unsealed, min(u.event_id) AS first FROM retention.audit_unsealed AS u GROUP BY 1) AS w
  LEFT JOIN retention.audit_events AS e ON e.id = w.first
  ORDER BY e.at NULLS LAST, w.tenant_id
$$;

-- Whose head moved since an anchor that is old enough, and who has, or once had, a store that was proven.
CREATE FUNCTION retention.audit_anchors_due(age interval, unmoved boolean) RETURNS TABLE (tenant_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
  WITH RECURSIVE chains AS (  -- a step for each tenant, not for each block
    SELECT min(s.tenant_id) AS tenant_id FROM retention.audit_seals AS s
    UNION ALL
    SELECT (SELECT min(s.tenant_id) FROM retention.audit_seals AS s WHERE s.tenant_id > c.tenant_id)
    FROM chains AS c WHERE c.tenant_id IS NOT NULL
  )
  SELECT c.tenant_id FROM chains AS c
  CROSS JOIN LATERAL (
    SELECT s.block FROM retention.audit_seals AS s WHERE s.tenant_id = c.tenant_id ORDER BY s.block DESC LIMIT 1) AS head
  LEFT JOIN LATERAL (
    SELECT a.block, a.at FROM retention.audit_anchors AS a
    WHERE a.tenant_id = c.tenant_id AND a.object_version IS NOT NULL ORDER BY a.id DESC LIMIT 1) AS last ON true
  WHERE c.tenant_id <> '*'
    AND (last.at IS NULL OR last.at < clock_timestamp() - age)
    AND (unmoved OR last.block IS NULL OR last.block <> head.block)
    AND EXISTS (SELECT FROM retention.readiness_events AS r WHERE r.tenant_id = c.tenant_id AND r.ready)
$$;

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['audit_unsealed', 'audit_seals', 'audit_anchors'] LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY worker_own_tenant ON retention.%I TO retention_worker USING (tenant_id = (SELECT retention.current_tenant()))', name);
    EXECUTE format('CREATE POLICY counter_all_tenants ON retention.%I FOR SELECT TO retention_counter USING (true)', name);
    EXECUTE format('CREATE POLICY operator_reads ON retention.%I FOR SELECT TO retention_operator USING (tenant_id = (SELECT retention.current_tenant()) AND (SELECT retention.permitted(''workflow_retention:read'')))', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_worker, retention_operator, retention_counter', name);
  END LOOP;
  FOREACH name IN ARRAY ARRAY['audit_seals', 'audit_anchors'] LOOP
    EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention.%I FOR EACH ROW EXECUTE FUNCTION retention.refuse_change()', name);
    EXECUTE format('CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.%I FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change()', name);
    EXECUTE format('GRANT INSERT ON retention.%I TO retention_worker', name);
  END LOOP;
END $$;
CREATE TRIGGER never_changed BEFORE UPDATE ON retention.audit_unsealed FOR EACH ROW EXECUTE FUNCTION retention.refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON retention.audit_unsealed
FOR EACH STATEMENT EXECUTE FUNCTION retention.refuse_change();

CREATE POLICY counter_notes ON retention.audit_unsealed FOR INSERT TO retention_counter WITH CHECK (true);
CREATE POLICY counter_takes ON retention.audit_unsealed FOR DELETE TO retention_counter USING (true);
GRANT INSERT, DELETE ON retention.audit_unsealed TO retention_counter;
GRANT SELECT (id, tenant_id, at) ON retention.audit_events TO retention_counter;

GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.note_unsealed() OWNER TO retention_counter;
ALTER FUNCTION retention.take_sealed() OWNER TO retention_counter;
ALTER FUNCTION retention.audit_backlog() OWNER TO retention_counter;
ALTER FUNCTION retention.audit_anchors_due(interval, boolean) OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
REVOKE EXECUTE ON FUNCTION retention.audit_backlog(), retention.audit_anchors_due(interval, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.audit_backlog(), retention.audit_anchors_due(interval, boolean) TO retention_worker;

-- What is there already waits for its first block. The owner runs this, and sees the rows of no tenant: it must, for once.
LOCK TABLE retention.audit_events IN SHARE ROW EXCLUSIVE MODE;
CREATE POLICY owner_once ON retention.audit_events FOR SELECT TO retention_owner USING (true);
CREATE POLICY owner_once ON retention.audit_unsealed FOR INSERT TO retention_owner WITH CHECK (true);
INSERT INTO retention.audit_unsealed (tenant_id, event_id) SELECT tenant_id, id FROM retention.audit_events;
DROP POLICY owner_once ON retention.audit_events;
DROP POLICY owner_once ON retention.audit_unsealed;
CREATE TRIGGER note_unsealed AFTER INSERT ON retention.audit_events REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION retention.note_unsealed();
CREATE TRIGGER take_sealed AFTER INSERT ON retention.audit_seals FOR EACH ROW EXECUTE FUNCTION retention.take_sealed();
