package pgstore

import (
	"bytes"
	"testing"
	"unsafe"
)

// Payloads share memory, but none can be seen or overwritten through another, and large ones have
// theirs to themselves: a slow event keeps little alive.
func TestPayloadSlabs(t *testing.T) {
	t.Parallel()
	d := newDecoder("shop", nil)
	var want, got [][]byte
	for i := range 1000 {
		raw := bytes.Repeat([]byte{byte(i)}, i%300)
		want, got = append(want, bytes.Clone(raw)), append(got, d.copy(raw))
		clear(raw) // as the connection does when it reads on
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) || cap(got[i]) != len(got[i]) {
			t.Fatalf("payload %d has %d bytes %v, and room for %d", i, len(got[i]), got[i], cap(got[i]))
		}
	}
	before := unsafe.SliceData(d.bytes)
	if large := d.copy(make([]byte, slabBytes)); len(large) != slabBytes || unsafe.SliceData(d.bytes) != before {
		t.Errorf("a large payload was cut from a slab")
	}
}
