package pgstore

import (
	"encoding/binary"
	"slices"
	"strconv"
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
// A claim takes the first live rows of a key, so below the first that it returned there was none. That stays so
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
}

func (f *frontier) known() known {
	f.mu.Lock()
	defer f.mu.Unlock()
	return known{slices.Clone(f.keys), slices.Clone(f.floors), f.run, f.settled}
}

// due reports whether it is time to look at the writers.
func (f *frontier) due() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.run == "" || f.claimed >= settleRows
}

// readWriters returns what reads the result of writers. highest is what was claimed before the statement was sent.
func (f *frontier) readWriters() func(pgx.Row) error {
	f.mu.Lock()
	highest := f.highest
	f.mu.Unlock()
	return func(row pgx.Row) error {
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
			highest = 0
		}
		open := func(writer string) bool { return slices.Contains(writers, writer) }
		if slices.ContainsFunc(f.writers, open) {
			return nil
		}
		f.settled, f.pending, f.writers = f.pending, highest, writers
		if len(writers) == 0 {
			f.settled = highest
		}
		return nil
	}
}

// firstOfKeys is the first seq of each key that a claim returned, by key_hash.
type firstOfKeys map[int64]int64

// see adds a row, which has its key_hash behind the columns of claim.sql, and returns that; 0 for none.
func (f firstOfKeys) see(rows pgx.Rows, seq int64) (key int64) {
	v := rows.RawValues()[columns]
	if v == nil {
		return 0
	}
	if len(v) == 8 && rows.FieldDescriptions()[columns].Format == pgx.BinaryFormatCode {
		key = int64(binary.BigEndian.Uint64(v))
	} else {
		key, _ = strconv.ParseInt(string(v), 10, 64) // the text of a bigint
	}
	if first, ok := f[key]; !ok || seq < first {
		f[key] = seq
	}
	return key
}

// add remembers what a claim has shown, which relied on k.
func (f *frontier) add(k known, first firstOfKeys, rows []row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.run != f.run {
		return
	}
	f.claimed += len(rows)
	for _, r := range rows {
		f.highest = max(f.highest, r.event.Seq)
	}
	if k.settled == 0 {
		return
	}
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
