-- Short-lived payloads and their expiry.

SELECT;
