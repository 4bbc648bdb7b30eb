// Package desired says what an OutboxDispatcher should have in the cluster. It is pure: the same
// object and flags give the same bytes, which the golden files in testdata show.
package desired
