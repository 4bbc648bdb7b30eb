package expression

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The limits of an evaluation on a payload of n bytes: [BaseWork] + n*[WorkPerByte] units of work, of which
// a CPU does 7 to 25 million in a second, and [BaseMemory] + n*[MemoryPerByte] bytes of values that it makes.
// A transformation's result has at most [BaseOutput] + n*[OutputPerByte] bytes as JSON.
const (
	BaseWork      = 1_000_000
	WorkPerByte   = 4
	BaseMemory    = 8 << 20
	MemoryPerByte = 64
	BaseOutput    = 1 << 20
	OutputPerByte = 2
)

// The assumed sizes of an evaluation's values, in bytes.
const (
	scalarBytes = 32     // a number or a text's header in a list that grows
	valueBytes  = 128    // a list or a map in a list that grows
	smallMap    = 400    // a map of up to 8 members
	memberBytes = 80     // each member of a larger one
	interval    = 1 << 9 // units of work between two looks at the context
)

// meter counts the work and the bytes of one evaluation before they are spent, and ends it at the limit. Freed
// bytes count too.
type meter struct {
	ctx          context.Context
	size         int // the payload's
	work, memory int64
	look         int64 // the work that is left when the context is looked at next
	err          error // why the evaluation was ended
	at           int64 // the node that ended it
}

func newMeter(ctx context.Context, size int) *meter {
	m := &meter{ctx: ctx, size: size, work: BaseWork + WorkPerByte*int64(size), memory: BaseMemory + MemoryPerByte*int64(size)}
	m.look = m.work - interval
	return m
}

// meterName is the meter's name among the variables of an evaluation. No expression can use it.
const meterName = "@meter"

func meterOf(frame *interpreter.ExecutionFrame) *meter {
	v, _ := frame.ResolveName(meterName)
	m, ok := v.(*meter)
	if !ok { // an expression of constants, when it is compiled
		return newMeter(context.Background(), 0)
	}
	return m
}

// spend counts work at a node.
func (m *meter) spend(node int64, units int) {
	if m.work -= int64(units); m.work > m.look {
		return
	}
	m.look = m.work - interval
	if m.work < 0 {
		m.end(node, fmt.Errorf("it costs more than a payload of %d bytes may (%d units of work); write it with fewer steps for each element", m.size, BaseWork+WorkPerByte*int64(m.size)))
	}
	if err := m.ctx.Err(); err != nil {
		m.end(node, fmt.Errorf("it was interrupted: %w", err))
	}
}

// take counts bytes that are to be made at a node.
func (m *meter) take(node int64, bytes int) {
	if m.memory -= int64(bytes); m.memory < 0 {
		m.end(node, fmt.Errorf("it makes more than a payload of %d bytes may (%d MiB); write it so that texts and lists grow less", m.size, (BaseMemory+MemoryPerByte*int64(m.size))>>20))
	}
}

// end ends the evaluation at once. An error that is returned would not: && and || pass over it.
func (m *meter) end(node int64, err error) {
	m.at, m.err = node, err
	panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: err.Error()})
}

// makeMap counts a map that is to be made.
func (m *meter) makeMap(node int64, members int) {
	m.spend(node, members)
	if members <= 8 {
		m.take(node, smallMap)
	} else {
		m.take(node, members*memberBytes)
	}
}

// inList counts an element that is put into a list that grows.
func (m *meter) inList(node int64, v ref.Val) {
	switch v.(type) {
	case traits.Mapper, traits.Lister:
		m.take(node, valueBytes)
	default:
		m.take(node, scalarBytes)
	}
}

// walk counts the work of going through all that a value holds, and returns about how many bytes it has as
// a text. What is in a value twice counts twice, as it does for whoever goes through it.
func (m *meter) walk(node int64, v any) int {
	m.spend(node, 1)
	n := 8
	switch v := v.(type) {
	case string:
		n += m.text(node, len(v))
	case json.Number:
		n += m.text(node, len(v))
	case types.String:
		n += m.text(node, len(v))
	case types.Bytes:
		n += m.text(node, len(v))
	case map[string]any:
		for name, member := range v {
			n += m.text(node, len(name)) + m.walk(node, member)
		}
	case []any:
		for _, element := range v {
			n += m.walk(node, element)
		}
	case list:
		n += m.walk(node, v.native)
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			n += m.walk(node, key) + m.walk(node, v.Get(key))
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			n += m.walk(node, it.Next())
		}
	case *types.Optional:
		if v.HasValue() {
			n += m.walk(node, v.GetValue())
		}
	default:
		n += 24
	}
	return n
}

// compared counts the work of comparing all that a value holds with another one.
func (m *meter) compared(node int64, v any) {
	before := m.work
	m.walk(node, v)
	m.spend(node, 7*int(before-m.work))
}

// text counts the work of going through a text.
func (m *meter) text(node int64, length int) int {
	m.spend(node, length/8)
	return length
}

// estimateLimit bounds what an evaluation could cost with the [sizes] that are assumed, in CEL's own units.
// It is for loops inside loops inside loops, which are reported when they are compiled.
const estimateLimit = 1_000_000

// sizes are what an expression is assumed to meet when its cost is estimated.
type sizes struct{}

// EstimateSize is 1000 for what is surely a string, else 100.
func (sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	if element.Type().Kind() == types.StringKind {
		return &checker.SizeEstimate{Max: 1000}
	}
	return &checker.SizeEstimate{Max: 100}
}

// EstimateCallCost leaves it at CEL's own estimate.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
