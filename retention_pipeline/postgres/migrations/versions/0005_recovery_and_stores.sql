-- Dead letters that are closed, and data stores that are detached.

SELECT;
