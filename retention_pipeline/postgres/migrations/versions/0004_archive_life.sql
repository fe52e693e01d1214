-- What happens to an archive after its source is gone: locks, expiry, tombstones.

SELECT;
