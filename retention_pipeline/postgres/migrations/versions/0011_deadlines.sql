-- Deadlines of join requests, and what people do with one.

-- One row for each dataset that has deadlines: when the next one is, over all tenants. A trigger of the platform's tables only ever
-- lowers it; the worker alone raises it, by recomputing it while no writer is under way.
CREATE TABLE retention.deadlines (
  dataset text PRIMARY KEY,
  next_due timestamptz NOT NULL,
  recomputed_at timestamptz,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- What a writer in a snapshot of its own can't tell from the row above: it may read it as it was. Emptied when it is recomputed.
CREATE TABLE retention.deadline_wakes (
  dataset text NOT NULL,
  due timestamptz NOT NULL
);
CREATE INDEX ON retention.deadline_wakes (dataset, due);

-- Called by the triggers that the catalog installs, as their owner, in the writer's transaction. The lock is shared among writers, and
-- keeps a recomputation off until they end: what they write is not to be seen before.
CREATE FUNCTION retention.lower_deadline(which text, soonest timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF soonest IS NULL OR NOT isfinite(soonest) THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('retention.deadline ' || which, 0));
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    INSERT INTO retention.deadline_wakes (dataset, due) VALUES (which, soonest);
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM retention.deadlines AS d WHERE d.dataset = which AND d.next_due <= soonest) THEN
    RETURN;  -- most writers end here, and touch no row that others wait for
  END IF;
  INSERT INTO retention.deadlines AS d (dataset, next_due) VALUES (which, soonest)
  ON CONFLICT (dataset) DO UPDATE SET next_due = EXCLUDED.next_due, at = clock_timestamp() WHERE d.next_due > EXCLUDED.next_due;
END $$;
REVOKE EXECUTE ON FUNCTION retention.lower_deadline(text, timestamptz) FROM PUBLIC;

-- Sets the deadline to what was computed under the lock that this takes; false where a writer is under way: then it stays as it is, early.
CREATE FUNCTION retention.begin_deadline(which text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_try_advisory_xact_lock(hashtextextended('retention.deadline ' || which, 0))
$$;
CREATE FUNCTION retention.set_deadline(which text, computed timestamptz) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM retention.deadline_wakes WHERE dataset = which;
  INSERT INTO retention.deadlines AS d (dataset, next_due, recomputed_at) VALUES (which, coalesce(computed, 'infinity'), clock_timestamp())
  ON CONFLICT (dataset) DO UPDATE SET next_due = EXCLUDED.next_due, recomputed_at = EXCLUDED.recomputed_at, at = clock_timestamp();
$$;
REVOKE EXECUTE ON FUNCTION retention.begin_deadline(text), retention.set_deadline(text, timestamptz) FROM PUBLIC;

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['deadlines', 'deadline_wakes'] LOOP
    EXECUTE format('ALTER TABLE retention.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY counter_keeps ON retention.%I TO retention_counter USING (true) WITH CHECK (true)', name);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON retention.%I TO retention_counter', name);
    EXECUTE format('CREATE POLICY worker_reads ON retention.%I FOR SELECT TO retention_worker USING (true)', name);
    EXECUTE format('GRANT SELECT ON retention.%I TO retention_worker', name);
  END LOOP;
END $$;

GRANT SELECT ON retention.sweep_set_asides TO retention_counter;
GRANT CREATE ON SCHEMA retention TO retention_counter;
ALTER FUNCTION retention.lower_deadline(text, timestamptz) OWNER TO retention_counter;
ALTER FUNCTION retention.begin_deadline(text) OWNER TO retention_counter;
ALTER FUNCTION retention.set_deadline(text, timestamptz) OWNER TO retention_counter;
REVOKE CREATE ON SCHEMA retention FROM retention_counter;
