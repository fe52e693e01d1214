-- Approvals that bind the worker, the brake's limits, and the deletion guard.

ALTER TABLE retention.approvals DROP CONSTRAINT approvals_job_check;
ALTER TABLE retention.approvals ADD CONSTRAINT approvals_job_check CHECK (job IN (
  'reconcile', 'archive', 'restore', 'expire', 'recovery_cancel', 'store_detach'));

CREATE OR REPLACE FUNCTION retention.approval_permission(job text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
  SELECT CASE job WHEN 'reconcile' THEN 'workflow_retention:reconcile' WHEN 'archive' THEN 'workflow_retention:archive'
    WHEN 'restore' THEN 'workflow_retention:restore' WHEN 'expire' THEN 'workflow_retention:archive'
    WHEN 'recovery_cancel' THEN 'workflow_recovery:cancel' WHEN 'store_detach' THEN 'workflow_retention:archive' END
$$;
