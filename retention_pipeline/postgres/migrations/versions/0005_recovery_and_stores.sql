-- Dead letters that are closed, and data stores that are detached.

-- Takes a single-use approval for exactly this job and subject, inside the change that it allows: either both are there or neither.
-- For the definer functions that the catalog installs, and nobody else.
CREATE FUNCTION retention.take_approval(
  approval uuid, wanted_job text, wanted_subject text, used_by text, OUT actor text, OUT reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
#variable_conflict use_variable
BEGIN
  SELECT a.actor, a.reason INTO actor, reason FROM retention.approvals AS a
  WHERE a.id = approval AND a.tenant_id = retention.current_tenant() AND a.job = wanted_job
    AND a.subject = wanted_subject AND a.kind = 'single_use' AND a.expires_at > clock_timestamp()
    AND retention.principal_permitted(a.actor, retention.approval_permission(a.job));
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no approval stands for exactly this' USING ERRCODE = 'RT010';
  END IF;
  INSERT INTO retention.approval_uses (approval_id, run, tenant_id, single_use)
  VALUES (approval, used_by, retention.current_tenant(), true);
EXCEPTION WHEN unique_violation THEN
  RAISE EXCEPTION 'the approval was used already' USING ERRCODE = 'RT010';
END $$;

GRANT SELECT ON retention.approvals TO retention_counter;
GRANT INSERT ON retention.approval_uses TO retention_counter;
CREATE POLICY counter_takes ON retention.approval_uses FOR INSERT TO retention_counter
  WITH CHECK (tenant_id = (SELECT retention.current_tenant()));
GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.take_approval(uuid, text, text, text) OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
REVOKE EXECUTE ON FUNCTION retention.take_approval(uuid, text, text, text) FROM PUBLIC;

-- `doctor` says which version the schema is of, with whatever login it has.
GRANT SELECT ON retention.schema_version TO retention_worker, retention_operator;
