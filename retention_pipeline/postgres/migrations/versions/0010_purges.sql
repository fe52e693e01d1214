-- What runs saw of the periods of purges.

SELECT;
