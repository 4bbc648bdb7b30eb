// Package replay puts dead events back, or marks them as handled: a set of dead letters, chosen by a filter, at a
// rate (CONTRACT C-42).
//
//	replays := replay.New(pool, replay.Options{})
//	request := config.ReplayRequest{
//		Namespace: "shop", Filter: config.DeadLetterFilter{Group: "7f3a9c21"}, Action: config.ActionReplay,
//		Reason: "CHG-812", RequestedBy: "alice", Canary: 10,
//	}
//	would, err := replays.DryRun(ctx, request)                      // changes nothing
//	progress, err := replays.Begin(ctx, request)                    // fixes the set
//	progress, err = replays.Run(ctx, progress.ID, replay.RunOptions{Wait: true}) // moves it
//
// # What is certain
//
// A replay and its set are rows of the database, and everything that is done of it is a transaction there that
// waits for the disk. A process that is killed at any moment has done a batch or has not; the next [Replays.Run] of
// the same id continues after it. A dead letter is locked, looked at and resolved in one transaction, so that replays
// that overlap do each row once: the second one skips it, and says so.
//
// A row is put back with its id, its dedupe key and its place in the order. Its retry budget is whole again, and its
// fencing token keeps rising: a consumer that fences on the token accepts the replay (CONTRACT C-27).
//
// # Order per key
//
// By default the order per key is kept: of a key's dead letters the first goes first, and the next one when that was
// delivered. When it is dead again, the others of its key are skipped. For a dispatcher without order, say AnyOrder: a
// key with many dead letters would only be slower.
//
// The dispatcher itself never delivers an event before an earlier live one of its key. Events that were delivered
// while an earlier one was dead stay delivered: that is what onDead Continue means.
//
// # Outcome
//
// Delivered means delivered, and not put back: [Replays.Run] reads the rows until each has an outcome. An event
// that fails again is dead again when its retries are used up, which takes the dispatcher hours with the defaults.
package replay
