// Package daemon is what the temporary servers of tests have in common: they come from the
// distribution's packages, run as an unprivileged user in a directory of their own, and end with the
// process that started them.
package daemon
