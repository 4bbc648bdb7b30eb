// Package desired says what an OutboxDispatcher should have in the cluster. It is pure: the same
// object, image and secrets give the same bytes, which the golden files in testdata show.
package desired
