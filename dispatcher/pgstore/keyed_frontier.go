package pgstore

import (
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

const (
	// frontierKeys is how many keys a frontier remembers. With more of them it forgets all and begins again.
	frontierKeys = 1000
	// settleRows is how many rows are claimed between two looks at the transactions that are open.
	settleRows = 50
)

// frontier remembers of keys below which seq none of their rows is live. While something holds vacuum back, a claim
// that looks for an earlier live row of a key would read all its rows that were delivered meanwhile.
//
// A claim takes the first live rows of a key, but for what expires, so below the first that it returned there was none. That stays so
// up to the seq that is settled: no transaction with a lower one may still commit. A delivered row is never live
// again, and the replay of a dead one resolves its dead letter: claims use no floor for a key that has a resolved one. A
// crash of the server may forget numbers that were drawn, so a floor is of one run of it.
//
// A seq is settled when all transactions have ended that had drawn a number at a moment at which it was known: it was
// claimed before (writers in workers.sql). Numbers rise, so each lower one was drawn before, too.
//
// For a key that is not remembered a claim reads all entries: that costs time only.
type frontier struct {
	mu      sync.Mutex
	run     string
	keys    []int64 // key_hash, ascending
	floors  []int64 // of each of them
	settled int64
	pending int64    // what is settled when the writers are gone
	writers []string // transactions that were open when pending was known
	highest int64    // the highest seq that was claimed
	claimed int      // rows since the last look at the writers
}

// known is what the statements of a claim may rely on.
type known struct {
	keys, floors []int64
	run          string
	settled      int64
	highest      int64 // what was claimed before
	due          bool  // it is time to look at the writers
}

func (f *frontier) known() known {
	f.mu.Lock()
	defer f.mu.Unlock()
	return known{slices.Clone(f.keys), slices.Clone(f.floors), f.run, f.settled, f.highest, f.run == "" || f.claimed >= settleRows}
}

// readWriters reads the result of writers. It was sent when k was known.
func (f *frontier) readWriters(k known, row pgx.Row) error {
	var writers []string
	var run string
	if err := row.Scan(&writers, &run); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claimed = 0
	if run != f.run { // what was claimed before does not count
		f.run, f.keys, f.floors, f.settled, f.pending, f.highest = run, nil, nil, 0, 0, 0
		k.highest = 0
	}
	open := func(writer string) bool { return slices.Contains(writers, writer) }
	if slices.ContainsFunc(f.writers, open) {
		return nil
	}
	f.settled, f.pending, f.writers = f.pending, k.highest, writers
	if len(writers) == 0 {
		f.settled = k.highest
	}
	return nil
}

// add remembers what a claim has shown, which relied on k.
func (f *frontier) add(k known, rows []row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.run != f.run {
		return
	}
	f.claimed += len(rows)
	first := map[int64]int64{} // the first seq of each key
	for _, r := range rows {
		f.highest = max(f.highest, r.event.Seq)
		if seq, ok := first[r.key]; r.ended != expired && (!ok || r.event.Seq < seq) {
			first[r.key] = r.event.Seq
		}
	}
	if k.settled == 0 {
		return
	}
	delete(first, 0) // rows without a key
	for key, seq := range first {
		floor := min(seq, k.settled+1)
		i, ok := slices.BinarySearch(f.keys, key)
		if ok {
			f.floors[i] = max(f.floors[i], floor)
			continue
		}
		if len(f.keys) == frontierKeys {
			f.keys, f.floors, i = nil, nil, 0
		}
		f.keys, f.floors = slices.Insert(f.keys, i, key), slices.Insert(f.floors, i, floor)
	}
}
