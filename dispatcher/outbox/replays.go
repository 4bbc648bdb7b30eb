package outbox

import "github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"

// Replays puts dead events back, or marks them as handled: a set of dead letters, chosen by a filter, at a rate (CONTRACT C-42).
// Its methods are DryRun, Begin, Run, Stop and those that list what was done. Make one with [NewReplays].
type Replays = replay.Replays

// ReplayOptions say where the outbox of a [Replays] is. The zero value of a field means its default.
type ReplayOptions = replay.Options

// ReplayRunOptions say how Replays.Run moves what Replays.Begin has chosen.
type ReplayRunOptions = replay.RunOptions

// NewReplays returns a Replays over a pgx pool or connection, whose login needs what `dispatcher migrate grants --for replay`
// prints. It does not connect.
func NewReplays(db replay.DB, opts ReplayOptions) *Replays { return replay.New(db, opts) }
