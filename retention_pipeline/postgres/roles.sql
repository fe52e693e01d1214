-- The product's roles, in their least form. They hold privileges and can't log in; logins are members of one of them.
-- Run by a role that may create roles; `retention migrate` does it where its login may, else a database administrator does.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['retention_owner', 'retention_worker', 'retention_operator', 'retention_counter',
    'retention_reader'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION', name);
    EXCEPTION WHEN duplicate_object THEN
      NULL;  -- a cluster has one set of roles for all of its databases
    END;
  END LOOP;
END $$;
GRANT retention_counter TO retention_owner;
