-- Short-lived payloads and their expiry.

-- When a payload expires, or NULL where it is none that does (E1, E3): an object of this mode, with a reason, and an instant with its offset.
-- It never raises, whatever it is given, and depends on no setting: what it reads is checked first, digit by digit, so that no text is
-- ever cast ('now' and 'infinity' are instants to PostgreSQL). A fraction beyond microseconds counts upwards: never too early.
-- The pattern captures nothing, and the parts are cut out by their places: captures made it a hundred times as dear.
CREATE FUNCTION retention.payload_expiry(payload jsonb) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  said text;
  rest text;  -- what follows the minutes: seconds, their fraction, the offset
  sign integer;  -- where the offset begins in it
  year integer; month integer; day integer; hour integer; minute integer; second integer := 0; micros integer := 0;
  fraction text;
  away text;
  away_minutes integer := 0;
BEGIN
  IF jsonb_typeof(payload) IS DISTINCT FROM 'object' OR payload -> 'mode' IS DISTINCT FROM '"ephemeral_hosted"'::jsonb
    OR jsonb_typeof(payload -> 'reason') IS DISTINCT FROM 'string' OR payload ->> 'reason' !~ '\S'
    OR jsonb_typeof(payload -> 'expiresAt') IS DISTINCT FROM 'string' THEN
    RETURN NULL;
  END IF;
  said := payload ->> 'expiresAt';
  IF said !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,30})?)?([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$' THEN
    RETURN NULL;
  END IF;
  year := left(said, 4); month := substr(said, 6, 2); day := substr(said, 9, 2); hour := substr(said, 12, 2);
  minute := substr(said, 15, 2); rest := substr(said, 17);
  sign := CASE WHEN lower(right(rest, 1)) = 'z' THEN length(rest) ELSE greatest(strpos(rest, '+'), strpos(rest, '-')) END;
  IF sign > 1 THEN
    second := substr(rest, 2, 2);
  END IF;
  IF year = 0 OR month NOT BETWEEN 1 AND 12 OR hour > 23 OR minute > 59 OR second > 59 OR day < 1 OR day > (CASE
    WHEN month IN (4, 6, 9, 11) THEN 30 WHEN month <> 2 THEN 31
    WHEN year % 4 = 0 AND (year % 100 <> 0 OR year % 400 = 0) THEN 29 ELSE 28 END) THEN
    RETURN NULL;
  END IF;
  IF sign > 5 THEN
    fraction := substr(rest, 5, sign - 5);
    micros := rpad(left(fraction, 6), 6, '0')::integer + (substr(fraction, 7) ~ '[1-9]')::integer;
  END IF;
  IF lower(right(rest, 1)) <> 'z' THEN
    away := rpad(replace(substr(rest, sign + 1), ':', ''), 4, '0');
    IF left(away, 2)::integer > 23 OR right(away, 2)::integer > 59 THEN
      RETURN NULL;
    END IF;
    away_minutes := (60 * left(away, 2)::integer + right(away, 2)::integer) * CASE substr(rest, sign, 1) WHEN '-' THEN -1 ELSE 1 END;
  END IF;
  RETURN (make_date(year, month, day) + make_time(hour, minute, second) + micros * interval '1 microsecond'
    - away_minutes * interval '1 minute') AT TIME ZONE 'UTC';
END $$;
GRANT EXECUTE ON FUNCTION retention.payload_expiry(jsonb) TO PUBLIC;  -- an index over it is kept by every writer

-- Whoever reads payloads for the platform: the view over them and nothing else of ours. Its own row-level security stays its own.
GRANT USAGE ON SCHEMA retention TO retention_reader;
