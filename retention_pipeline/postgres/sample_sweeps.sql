-- Sample rows for the sweeps, for one tenant of the reference platform, as plain writers would leave them: triggers are on.
-- Parameters: tenant, as_of. `sample.fates` says of each row what must become of it, and why: what a demo counts against.

INSERT INTO nucleus.tenant_settings (tenant_id, name, value)
SELECT t.id, 'workflow.allow_ephemeral_payload', 'true' FROM nucleus.tenants AS t WHERE t.id = %(tenant)s::text::uuid AND t.alias = 'aurora';

-- Payloads of instances that are still at work: one in five has expired.
CREATE TEMP TABLE payloads ON COMMIT DROP AS
SELECT i.id AS instance_id, n, n %% 5 AS kind,
  CASE n %% 5
    WHEN 0 THEN jsonb_build_object('mode', 'ephemeral_hosted', 'reason', 'one-time code', 'code', 'EPHEMERAL-SAMPLE-' || n,
      'expiresAt', to_char((%(as_of)s::timestamptz - make_interval(hours => n)) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
    WHEN 1 THEN jsonb_build_object('mode', 'ephemeral_hosted', 'reason', 'upload link', 'link', 'EPHEMERAL-SAMPLE-' || n,
      'expiresAt', to_char((%(as_of)s::timestamptz + make_interval(hours => n + 2)) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
    WHEN 2 THEN jsonb_build_object('mode', 'external_reference', 'note', 'was ephemeral_hosted until 2024')
    WHEN 3 THEN jsonb_build_object('mode', 'ephemeral_hosted', 'reason', 'typed by hand', 'expiresAt',
      (ARRAY['tomorrow', '2024-02-30T00:00:00Z', '2024-05-01T00:00:00'])[1 + n %% 3])
  END AS payload
FROM (SELECT id, row_number() OVER (ORDER BY id)::integer AS n FROM nucleus.workflow_instances
  WHERE tenant_id = %(tenant)s::text::uuid AND state = 'running') AS i;

INSERT INTO nucleus.workflow_central_tasks (id, tenant_id, instance_id, name, payload, data)
SELECT sample.id(%(tenant)s::text, 'task', n), %(tenant)s::text::uuid, instance_id, 'task ' || n, payload,
  CASE WHEN kind IN (0, 1) THEN jsonb_build_object('mirror', 'EPHEMERAL-SAMPLE-' || n) ELSE '{"own": true}' END FROM payloads;
INSERT INTO nucleus.workflow_central_instances (id, tenant_id, instance_id, payload, variables)
SELECT sample.id(%(tenant)s::text, 'central instance', n), %(tenant)s::text::uuid, instance_id, payload,
  CASE WHEN kind IN (0, 1) THEN jsonb_build_object('mirror', 'EPHEMERAL-SAMPLE-' || n) ELSE '{"own": true}' END FROM payloads;
INSERT INTO sample.fates
SELECT 'ephemeral_payloads', t.name, sample.id(%(tenant)s::text, t.kind, n)::text, p.kind = 0,
  (ARRAY['expired', 'not expired yet', 'an external reference', 'its expiry is no instant', 'no payload'])[p.kind + 1]
FROM payloads AS p, (VALUES ('workflow_central_tasks', 'task'), ('workflow_central_instances', 'central instance')) AS t (name, kind);

-- Submissions, one an hour, for sixty days.
INSERT INTO nucleus.crm_submission_ledger (id, tenant_id, idempotency_key, created_at)
SELECT sample.id(%(tenant)s::text, 'crm', n), %(tenant)s::text::uuid, md5('crm' || n), %(as_of)s::timestamptz - make_interval(hours => n, mins => -30)
FROM generate_series(1, 1440) AS n;
INSERT INTO nucleus.platform_submission_ledger (tenant_id, idempotency_key, created_at)
SELECT %(tenant)s::text::uuid, md5('platform' || n), %(as_of)s::timestamptz - make_interval(hours => n, mins => -30)
FROM generate_series(1, 1440) AS n;
INSERT INTO sample.fates
SELECT 'submission_ledgers', 'crm_submission_ledger', sample.id(%(tenant)s::text, 'crm', n)::text, n > 720,
  CASE WHEN n > 720 THEN 'older than 30 days' ELSE 'not 30 days old' END FROM generate_series(1, 1440) AS n
UNION ALL
SELECT 'submission_ledgers', 'platform_submission_ledger', id::text, created_at < %(as_of)s::timestamptz - interval '720 hours',
  CASE WHEN created_at < %(as_of)s::timestamptz - interval '720 hours' THEN 'older than 30 days' ELSE 'not 30 days old' END
FROM nucleus.platform_submission_ledger WHERE tenant_id = %(tenant)s::text::uuid;

-- Jobs, two a day, for two hundred days; one in seven never came to an end. Two outcomes each.
INSERT INTO nucleus.jobs (id, tenant_id, kind, status, created_at, finished_at)
SELECT sample.id(%(tenant)s::text, 'job', n), %(tenant)s::text::uuid, 'import', CASE WHEN n %% 7 = 0 THEN 'running' ELSE 'succeeded' END,
  %(as_of)s::timestamptz - make_interval(hours => 12 * n),
  CASE WHEN n %% 7 <> 0 THEN %(as_of)s::timestamptz - make_interval(hours => 12 * n, mins => -30) END
FROM generate_series(1, 400) AS n;
INSERT INTO nucleus.job_outcome_evidence (id, tenant_id, job_id, outcome, recorded_at)
SELECT sample.id(%(tenant)s::text, 'outcome', 10 * n + k), %(tenant)s::text::uuid, sample.id(%(tenant)s::text, 'job', n), 'imported',
  %(as_of)s::timestamptz - make_interval(hours => 12 * n, mins => -30)
FROM generate_series(1, 400) AS n, generate_series(1, 2) AS k;
INSERT INTO sample.fates
SELECT 'job_evidence', t.name, sample.id(%(tenant)s::text, t.kind, CASE t.kind WHEN 'job' THEN n ELSE 10 * n + k END)::text, n > 180 AND n %% 7 <> 0,
  CASE WHEN n %% 7 = 0 THEN 'the job still runs' WHEN n > 180 THEN 'older than 90 days' ELSE 'not 90 days old' END
FROM generate_series(1, 400) AS n, (VALUES ('jobs', 'job', 1), ('job_outcome_evidence', 'outcome', 1), ('job_outcome_evidence', 'outcome', 2)) AS t (name, kind, k);

-- History of instances that are still at work: an execution and its checkpoint of last year, a replay, and dead letters.
CREATE TEMP TABLE lasting ON COMMIT DROP AS
SELECT id, row_number() OVER (ORDER BY id)::integer AS n FROM nucleus.workflow_instances
WHERE tenant_id = %(tenant)s::text::uuid AND state = 'running';
INSERT INTO nucleus.workflow_executions (id, tenant_id, instance_id, status, started_at, finished_at)
SELECT sample.id(%(tenant)s::text, 'old execution', 10 * n + k), %(tenant)s::text::uuid, id, CASE WHEN k = 3 THEN 'running' ELSE 'succeeded' END,
  %(as_of)s::timestamptz - interval '401 days', CASE k WHEN 1 THEN %(as_of)s::timestamptz - interval '400 days' WHEN 2 THEN %(as_of)s::timestamptz - interval '364 days' END
FROM lasting, generate_series(1, 3) AS k;
INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step, at)
SELECT %(tenant)s::text::uuid, sample.id(%(tenant)s::text, 'old execution', 10 * n + k), 'step 1', %(as_of)s::timestamptz - interval '400 days'
FROM lasting, (VALUES (1), (3)) AS e (k);
INSERT INTO nucleus.workflow_transition_requests (id, tenant_id, instance_id, status, replay_of, requested_at, finished_at)
SELECT sample.id(%(tenant)s::text, 'replay', n), %(tenant)s::text::uuid, id, 'completed', sample.id(%(tenant)s::text, 'request', n),
  %(as_of)s::timestamptz - interval '41 days', %(as_of)s::timestamptz - interval '40 days' FROM lasting;
INSERT INTO nucleus.workflow_dead_letters (id, tenant_id, instance_id, status, created_at, closed_at)
SELECT sample.id(%(tenant)s::text, 'old letter', 10 * n + k), %(tenant)s::text::uuid, id, CASE WHEN k = 3 THEN 'open' ELSE 'resolved' END,
  %(as_of)s::timestamptz - interval '50 days', CASE k WHEN 1 THEN %(as_of)s::timestamptz - interval '40 days' WHEN 2 THEN %(as_of)s::timestamptz - interval '10 days' END
FROM lasting, generate_series(1, 3) AS k WHERE n <= 20;

-- Companies, and people who ask to join them.
INSERT INTO nucleus.companies (id, tenant_id, name, status)
SELECT sample.id(%(tenant)s::text, 'company', n), %(tenant)s::text::uuid, 'company ' || n, (ARRAY['active', 'paused', 'active'])[n] FROM generate_series(1, 3) AS n;
INSERT INTO nucleus.company_invites (id, tenant_id, company_id, revoked_at)
SELECT sample.id(%(tenant)s::text, 'invite', n), %(tenant)s::text::uuid, sample.id(%(tenant)s::text, 'company', n), CASE WHEN n = 3 THEN %(as_of)s::timestamptz END
FROM generate_series(1, 3) AS n;
INSERT INTO nucleus.join_requests (id, tenant_id, company_id, invite_id, status, kept_at, archived_at, created_at, updated_at)
SELECT sample.id(%(tenant)s::text, 'join', n), %(tenant)s::text::uuid, sample.id(%(tenant)s::text, 'company', c), sample.id(%(tenant)s::text, 'invite', CASE WHEN n %% 8 = 5 THEN 1 + c %% 3 ELSE c END),
  (ARRAY['approved', 'pending_approval', 'rejected'])[CASE WHEN n %% 8 = 6 THEN 1 WHEN n %% 8 = 7 THEN 3 ELSE 2 END],
  CASE WHEN n %% 8 = 3 THEN at END, CASE WHEN n %% 8 = 4 THEN at END, at, at
FROM (SELECT n, CASE WHEN n %% 8 = 2 THEN 2 ELSE 1 + 2 * (n %% 2) END AS c,
  %(as_of)s::timestamptz - make_interval(days => CASE WHEN n %% 8 = 1 THEN 89 ELSE 91 + n END) AS at FROM generate_series(1, 160) AS n) AS made;
INSERT INTO sample.fates
SELECT 'join_requests', 'join_requests', sample.id(%(tenant)s::text, 'join', n)::text, n %% 8 = 0,
  (ARRAY['90 days without activity', 'not 90 days yet', 'its company is paused', 'somebody kept it', 'archived before', 'its invite is another company''s', 'approved', 'rejected'])[1 + n %% 8]
FROM generate_series(1, 160) AS n;
