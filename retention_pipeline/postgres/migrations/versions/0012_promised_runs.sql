-- What standing approvals promise, and when it was last done: ids, codes and instants of all tenants, and nothing else (O2).

-- A job of a tenant is promised for as long as a standing approval lasts; for 30 days more it is told that the last one ended. A run
-- that ended `failed`, `blocked`, `skipped` or as a preflight did not do what was promised.
CREATE FUNCTION retention.promised_runs(as_of timestamptz)
RETURNS TABLE (tenant_id text, job text, promised_at timestamptz, until timestamptz, did_at timestamptz, tried_at timestamptz, outcome text, reason text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT p.tenant_id, p.job, p.promised_at, p.until, done.at, tried.at, tried.outcome, tried.reason
  FROM (
    SELECT a.tenant_id, a.job, min(a.at) FILTER (WHERE a.expires_at > promised_runs.as_of) AS promised_at, max(a.expires_at) AS until
    FROM retention.approvals AS a
    WHERE a.kind = 'standing' AND a.at <= promised_runs.as_of AND a.expires_at > promised_runs.as_of - interval '30 days'
    GROUP BY a.tenant_id, a.job) AS p
  LEFT JOIN LATERAL (
    SELECT o.at FROM retention.run_outcomes AS o
    WHERE o.tenant_id = p.tenant_id AND o.job = p.job AND o.outcome IN ('completed', 'work_remains', 'behind', 'partial')
      AND o.at <= promised_runs.as_of
    ORDER BY o.id DESC LIMIT 1) AS done ON true
  LEFT JOIN LATERAL (
    SELECT o.at, o.outcome, o.reason FROM retention.run_outcomes AS o
    WHERE o.tenant_id = p.tenant_id AND o.job = p.job AND o.at <= promised_runs.as_of
    ORDER BY o.id DESC LIMIT 1) AS tried ON true
  ORDER BY p.tenant_id, p.job
$$;
REVOKE EXECUTE ON FUNCTION retention.promised_runs(timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION retention.promised_runs(timestamptz) TO retention_worker;
GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.promised_runs(timestamptz) OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
