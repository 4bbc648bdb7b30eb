package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// MaxHeader is the most bytes of a header's value.
const MaxHeader = 8 << 10

// headerTypes are what a header's expression may make, also as an optional value.
var headerTypes = []*cel.Type{cel.StringType, cel.IntType, cel.UintType, cel.DoubleType, cel.BoolType, cel.TimestampType, cel.NullType}

// Header compiles an expression over event and payload that makes the value of a message's header.
// It fails for an expression that does not compile to that, with line and column.
func Header(text string) (*Expression, error) {
	want := headerTypes
	for _, t := range append(headerTypes, cel.DynType) {
		want = append(want, cel.OptionalType(t))
	}
	return compile(text, payloadEnvironment, "text, a number, a bool or a timestamp, or an optional one", want...)
}

// ReadsPayload reports whether the expression mentions payload. One that does not is run with nil for it.
func (x *Expression) ReadsPayload() bool {
	for _, reference := range x.ast.NativeRep().ReferenceMap() {
		if reference.Name == "payload" {
			return true
		}
	}
	return false
}

// Header runs the expression until the context ends, and returns the header's value. It is empty for no header.
// Errors are as those of [Expression.String].
func (x *Expression) Header(ctx context.Context, e *dispatcher.Event, payload any) (string, error) {
	value, m, err := x.run(ctx, e, payload)
	if err != nil {
		return "", err
	}
	if optional, ok := value.(*types.Optional); ok {
		if !optional.HasValue() {
			return "", nil
		}
		value = optional.GetValue()
	}
	var text string
	switch value.Type() {
	case types.MapType, types.ListType:
		err = fmt.Errorf("it makes a %s, which no header can hold", value.Type().TypeName())
	default:
		var made any
		made, err = m.plain(0, value)
		switch v := made.(type) {
		case string:
			text = v
		case json.Number:
			text = v.String()
		case bool:
			text = strconv.FormatBool(v)
		}
	}
	if err == nil && len(text) > MaxHeader {
		err = errors.New("it makes more than 8 KiB, which is the limit of a header")
	}
	if err != nil {
		return "", fmt.Errorf("line 1, column 1: %w", err)
	}
	return text, nil
}
