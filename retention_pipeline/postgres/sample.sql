-- Sample data of a believable shape for one tenant of the reference platform. Parameters: tenant, alias, default_days, instances,
-- as_of. Run with triggers off (`session_replication_role = replica`): history is written as it would have happened.

INSERT INTO nucleus.tenants (id, alias, default_retention_days) VALUES (%(tenant)s::text::uuid, %(alias)s, %(default_days)s);

-- One workflow for each kind of retention period: inherited, 30, 90, ten years, without limit.
INSERT INTO nucleus.workflows (id, tenant_id, name, version, definition, retention_days)
SELECT nucleus_sample.id(%(tenant)s::text, 'workflow', n), %(tenant)s::text::uuid, (ARRAY['onboarding', 'invoice run', 'claims intake', 'contract review', 'payroll export'])[n], n,
  jsonb_build_object('steps', (SELECT jsonb_agg(jsonb_build_object('name', 'step ' || k, 'action', md5(n || ':' || k))) FROM generate_series(1, 8) AS k)),
  (ARRAY[NULL, 30, 90, 3650, 0])[n]
FROM generate_series(1, 5) AS n;

INSERT INTO nucleus.workflow_triggers (id, tenant_id, workflow_id, kind, configuration)
SELECT nucleus_sample.id(%(tenant)s::text, 'trigger', n), %(tenant)s::text::uuid, nucleus_sample.id(%(tenant)s::text, 'workflow', n), 'schedule', '{"every": "day"}'
FROM generate_series(1, 5) AS n;
INSERT INTO nucleus.workflow_trigger_occurrences (id, tenant_id, trigger_id, occurred_at, event)
SELECT nucleus_sample.id(%(tenant)s::text, 'occurrence', n), %(tenant)s::text::uuid, nucleus_sample.id(%(tenant)s::text, 'trigger', 1 + n %% 5),
  %(as_of)s::timestamptz - make_interval(days => 200 - n), jsonb_build_object('n', n)
FROM generate_series(1, 100) AS n;
INSERT INTO nucleus.workflow_stores (id, tenant_id, name) VALUES (nucleus_sample.id(%(tenant)s::text, 'store', 1), %(tenant)s::text::uuid, 'documents');

-- Most instances ended some time in the last 400 days; one in nine is still at work.
CREATE TEMP TABLE made ON COMMIT DROP AS
SELECT n, nucleus_sample.id(%(tenant)s::text, 'instance', n) AS id,
  CASE WHEN n %% 10 < 6 THEN 1 + n %% 3 ELSE 1 + n %% 5 END AS workflow,
  CASE WHEN n %% 9 = 0 THEN 'running' ELSE (ARRAY['completed', 'completed', 'completed', 'failed', 'cancelled'])[1 + n %% 5] END AS state,
  %(as_of)s::timestamptz - make_interval(days => 1 + (n * 37) %% 400, secs => (n * 7919) %% 86400) AS ended,
  nucleus_sample.bytes(n, %(instances)s::integer) AS bytes
FROM generate_series(1, %(instances)s::integer) AS n;

INSERT INTO nucleus.workflow_instances (id, tenant_id, workflow_id, state, title, variables, priority, deadline, created_at, updated_at)
SELECT id, %(tenant)s::text::uuid, nucleus_sample.id(%(tenant)s::text, 'workflow', workflow), state, 'Case ' || n,
  jsonb_build_object('case', n, 'amount', (n * 1.37)::numeric(12, 2), 'labels', jsonb_build_array('sample', 'größe', '日本')), n %% 5,
  make_interval(days => n %% 30), ended - interval '3 days', ended
FROM made;

-- Every thirty-first terminal instance lacks its epoch (an import that did not bring them); every eighth was reopened once.
INSERT INTO nucleus.workflow_terminal_epochs (instance_id, epoch, tenant_id, state, entered_at)
SELECT id, e, %(tenant)s::text::uuid, CASE WHEN e = epochs THEN state ELSE 'failed' END, ended - make_interval(hours => 12 * (epochs - e))
FROM (SELECT *, CASE WHEN n %% 8 = 0 THEN 2 ELSE 1 END AS epochs FROM made WHERE state <> 'running' AND n %% 31 <> 0) AS m,
  generate_series(1, epochs) AS e;

INSERT INTO nucleus.workflow_contexts (id, tenant_id, instance_id, name, payload, data, deleted_at, created_at)
SELECT nucleus_sample.id(%(tenant)s::text, 'context', n * 10 + k), %(tenant)s::text::uuid, id, 'context ' || k,
  CASE WHEN n %% 17 = 0 AND k = 2
    THEN jsonb_build_object('mode', 'ephemeral_hosted', 'reason', 'one-time code', 'expiresAt', to_char(ended AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'code', 'EPHEMERAL-SAMPLE-' || n)
    ELSE jsonb_build_object('note', md5(n || '/' || k), 'score', n / 7.0) END,
  CASE WHEN n %% 17 = 0 AND k = 2 THEN jsonb_build_object('code', 'EPHEMERAL-SAMPLE-' || n) ELSE '{}' END,
  CASE WHEN k = 3 THEN ended - interval '1 day' END, ended - interval '2 days'
FROM made, generate_series(1, 3) AS k;

INSERT INTO nucleus.workflow_transitions (tenant_id, instance_id, from_state, to_state, actor, details, at)
SELECT %(tenant)s::text::uuid, id, 'step ' || k, 'step ' || k + 1, 'engine', jsonb_build_object('attempt', k), ended - make_interval(mins => 90 - 10 * k)
FROM made, generate_series(1, 8) AS k;

INSERT INTO nucleus.workflow_transition_requests (id, tenant_id, instance_id, status, requested_at, finished_at)
SELECT nucleus_sample.id(%(tenant)s::text, 'request', n * 10 + k), %(tenant)s::text::uuid, id, CASE WHEN k = 1 AND n %% 53 = 0 THEN 'running' ELSE 'completed' END,
  ended - interval '1 hour', CASE WHEN k = 1 AND n %% 53 = 0 THEN NULL ELSE ended END
FROM made, generate_series(1, 2) AS k;

INSERT INTO nucleus.workflow_executions (id, tenant_id, instance_id, status, log, cost, started_at, finished_at)
SELECT nucleus_sample.id(%(tenant)s::text, 'execution', n * 10 + k), %(tenant)s::text::uuid, id, CASE WHEN k = 1 AND n %% 59 = 0 THEN 'running' ELSE 'succeeded' END,
  nucleus_sample.log(n, bytes / 4), 0.0001 * n, ended - interval '30 minutes', CASE WHEN k = 1 AND n %% 59 = 0 THEN NULL ELSE ended END
FROM made, generate_series(1, 4) AS k;

INSERT INTO nucleus.workflow_action_checkpoints (tenant_id, execution_id, step, output, attachment, at)
SELECT %(tenant)s::text::uuid, nucleus_sample.id(%(tenant)s::text, 'execution', n * 10 + 1 + k %% 4), 'step ' || k, jsonb_build_object('ok', true, 'digest', md5(k || ':' || n)),
  CASE WHEN k = 1 THEN decode(md5(n::text) || md5('x' || n), 'hex') END, ended - make_interval(secs => k)
FROM made, generate_series(1, 12) AS k;

INSERT INTO nucleus.workflow_dead_letters (id, tenant_id, instance_id, status, error, created_at, closed_at)
SELECT nucleus_sample.id(%(tenant)s::text, 'dead letter', n), %(tenant)s::text::uuid, id, CASE WHEN n %% 2 = 0 THEN 'open' ELSE 'resolved' END, 'timeout after 30 s', ended - interval '2 hours',
  CASE WHEN n %% 2 = 1 THEN ended - interval '1 hour' END
FROM made WHERE n %% 47 = 0;

INSERT INTO nucleus.workflow_occurrence_targets (id, tenant_id, occurrence_id, instance_id, status, created_at)
SELECT nucleus_sample.id(%(tenant)s::text, 'target', n), %(tenant)s::text::uuid, nucleus_sample.id(%(tenant)s::text, 'occurrence', 1 + n %% 100), id, CASE WHEN n %% 61 = 0 THEN 'dispatched' ELSE 'completed' END, ended
FROM made;
INSERT INTO nucleus.workflow_trigger_deliveries (id, tenant_id, target_id, status, attempt, response, at)
SELECT nucleus_sample.id(%(tenant)s::text, 'delivery', n * 10 + k), %(tenant)s::text::uuid, nucleus_sample.id(%(tenant)s::text, 'target', n), CASE WHEN k = 1 AND n %% 67 = 0 THEN 'active' ELSE 'delivered' END, k, '200', ended
FROM made, generate_series(1, 2) AS k;

INSERT INTO nucleus.workflow_artifact_operations (id, tenant_id, instance_id, kind, status, bytes, checksum, at)
SELECT nucleus_sample.id(%(tenant)s::text, 'artifact', n * 10 + k), %(tenant)s::text::uuid, id, 'upload', CASE WHEN k = 1 AND n %% 71 = 0 THEN 'open' ELSE 'done' END, n * 1000, decode(md5(n::text), 'hex'), ended
FROM made, generate_series(1, 2) AS k;
INSERT INTO nucleus.workflow_store_bindings (store_id, instance_id, tenant_id, bound_at)
SELECT nucleus_sample.id(%(tenant)s::text, 'store', 1), id, %(tenant)s::text::uuid, ended FROM made WHERE n %% 3 = 0;
