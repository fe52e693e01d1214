-- Deadlines of join requests, and what people do with one.

SELECT;
