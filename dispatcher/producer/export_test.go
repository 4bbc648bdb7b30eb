package producer

// CheckJSON is checkJSON, for its comparison with PostgreSQL.
var CheckJSON = checkJSON
