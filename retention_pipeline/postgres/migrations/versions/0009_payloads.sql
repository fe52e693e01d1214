-- Short-lived payloads and their expiry.

-- When a payload expires, or NULL where it is none that does (E1, E3): an object of this mode, with a reason, and an instant with its offset.
-- It never raises, whatever it is given, and depends on no setting: what it reads is checked first, digit by digit, so that no text is
-- ever cast ('now' and 'infinity' are instants to PostgreSQL). A fraction beyond microseconds counts upwards: never too early.
CREATE FUNCTION retention.payload_expiry(payload jsonb) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part text[];
  year integer; month integer; day integer; hour integer; minute integer; second integer; micros integer := 0;
  away integer := 0;  -- the offset, in minutes
BEGIN
  IF jsonb_typeof(payload) IS DISTINCT FROM 'object' OR payload -> 'mode' IS DISTINCT FROM '"ephemeral_hosted"'::jsonb
    OR jsonb_typeof(payload -> 'reason') IS DISTINCT FROM 'string' OR payload ->> 'reason' !~ '\S'
    OR jsonb_typeof(payload -> 'expiresAt') IS DISTINCT FROM 'string' THEN
    RETURN NULL;
  END IF;
  part := regexp_match(payload ->> 'expiresAt',
    '^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,30}))?)?(?:([Zz])|([+-])([0-9]{2})(?::?([0-9]{2}))?)$');
  IF part IS NULL THEN
    RETURN NULL;
  END IF;
  year := part[1]; month := part[2]; day := part[3]; hour := part[4]; minute := part[5]; second := coalesce(part[6], '0');
  IF year = 0 OR month NOT BETWEEN 1 AND 12 OR hour > 23 OR minute > 59 OR second > 59 OR day < 1 OR day > (CASE
    WHEN month IN (4, 6, 9, 11) THEN 30 WHEN month <> 2 THEN 31
    WHEN year % 4 = 0 AND (year % 100 <> 0 OR year % 400 = 0) THEN 29 ELSE 28 END) THEN
    RETURN NULL;
  END IF;
  IF part[7] IS NOT NULL THEN
    micros := rpad(left(part[7], 6), 6, '0')::integer + (substr(part[7], 7) ~ '[1-9]')::integer;
  END IF;
  IF part[8] IS NULL THEN
    away := 60 * part[10]::integer + coalesce(part[11], '0')::integer;
    IF part[10]::integer > 23 OR coalesce(part[11], '0')::integer > 59 THEN
      RETURN NULL;
    END IF;
  END IF;
  RETURN (make_date(year, month, day) + make_time(hour, minute, second) + micros * interval '1 microsecond'
    - CASE part[9] WHEN '-' THEN -away ELSE away END * interval '1 minute') AT TIME ZONE 'UTC';
END $$;

GRANT EXECUTE ON FUNCTION retention.payload_expiry(jsonb) TO PUBLIC;  -- an index over it is kept by every writer

-- Whoever reads payloads for the platform: the view over them and nothing else of ours. Its own row-level security stays its own.
GRANT USAGE ON SCHEMA retention TO retention_reader;
