package expression

import (
	"encoding/json"
	"sync"
	_ "time/tzdata" // the image has no time zones, and CEL's functions of a timestamp take their names

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// environment has the variables of a kind of expressions, and the functions by their overloads' and their own names.
type environment struct {
	*cel.Env
	functions map[string]*functions.Overload
}

func newEnvironment(env *cel.Env, err error) (*environment, error) {
	if err != nil {
		return nil, err
	}
	e := &environment{env, map[string]*functions.Overload{}}
	for _, declaration := range env.Functions() {
		bindings, err := declaration.Bindings()
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			e.functions[b.Operator] = b
		}
	}
	return e, nil
}

// eventEnvironment is for routes: they see no payload.
var eventEnvironment = sync.OnceValues(func() (*environment, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	p := &provider{registry}
	return newEnvironment(cel.NewEnv(append(mixed(),
		cel.CustomTypeProvider(p), cel.CustomTypeAdapter(p),
		cel.OptionalTypes(), ext.Strings(ext.StringsMaxPrecision(100)),
		cel.Variable("event", cel.ObjectType(eventType)),
	)...))
})

// payloadEnvironment is for rules and transformations.
var payloadEnvironment = sync.OnceValues(func() (*environment, error) {
	env, err := eventEnvironment()
	if err != nil {
		return nil, err
	}
	return newEnvironment(env.Extend(append(payloadFunctions(), cel.Variable("payload", cel.DynType))...))
})

// variables are what an expression sees.
type variables struct {
	event   *dispatcher.Event
	payload any
	meter   *meter
}

// ResolveName returns a variable.
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case "event":
		return v.event, true
	case "payload":
		return v.payload, true
	case meterName:
		return v.meter, true
	}
	return nil, false
}

// Parent is nil: there are no other variables.
func (*variables) Parent() cel.Activation { return nil }

// eventType is the name of event's type in CEL.
const eventType = "outbox.Event"

// eventFields are the fields of event.
var eventFields = map[string]*types.FieldType{
	"namespace":     text(func(e *dispatcher.Event) string { return e.Namespace }),
	"topic":         text(func(e *dispatcher.Event) string { return e.Topic }),
	"type":          text(func(e *dispatcher.Event) string { return e.EventType }),
	"tenant":        text(tenant),
	"aggregateType": text(func(e *dispatcher.Event) string { return e.AggregateType }),
	"aggregateId":   text(func(e *dispatcher.Event) string { return e.AggregateID }),
	"partitionKey":  text(func(e *dispatcher.Event) string { return e.PartitionKey }),
	"dedupeKey":     text(func(e *dispatcher.Event) string { return e.DedupeKey }),
	"key":           text((*dispatcher.Event).Key),
	"id":            text(func(e *dispatcher.Event) string { return e.ID.String() }),
	"sequence":      always(cel.IntType, func(e *dispatcher.Event) any { return e.Seq }),
	"aggregateSequence": {
		Type:    cel.IntType,
		IsSet:   func(e any) bool { return e.(*dispatcher.Event).AggregateSequence > 0 },
		GetFrom: func(e any) (any, error) { return e.(*dispatcher.Event).AggregateSequence, nil },
	},
	"token":     always(cel.IntType, func(e *dispatcher.Event) any { return e.LeaseNumber }),
	"attempt":   always(cel.IntType, func(e *dispatcher.Event) any { return e.Attempt }),
	"createdAt": always(cel.TimestampType, func(e *dispatcher.Event) any { return e.CreatedAt }),
	"headers": {
		Type:    cel.MapType(cel.StringType, cel.StringType),
		IsSet:   func(e any) bool { return len(e.(*dispatcher.Event).Headers) > 0 },
		GetFrom: func(e any) (any, error) { return e.(*dispatcher.Event).Headers, nil },
	},
}

func text(get func(*dispatcher.Event) string) *types.FieldType {
	return &types.FieldType{
		Type:    cel.StringType,
		IsSet:   func(e any) bool { return get(e.(*dispatcher.Event)) != "" },
		GetFrom: func(e any) (any, error) { return get(e.(*dispatcher.Event)), nil },
	}
}

// always is a field that every event has.
func always(typ *cel.Type, get func(*dispatcher.Event) any) *types.FieldType {
	return &types.FieldType{
		Type:    typ,
		IsSet:   func(any) bool { return true },
		GetFrom: func(e any) (any, error) { return get(e.(*dispatcher.Event)), nil },
	}
}

func tenant(e *dispatcher.Event) string {
	if !e.TenantID.Valid {
		return ""
	}
	return e.TenantID.UUID.String()
}

// provider knows the type of event, and how the values of a decoded payload look in CEL.
type provider struct{ *types.Registry }

// FindStructType finds event's type.
func (p *provider) FindStructType(name string) (*types.Type, bool) {
	if name == eventType {
		return types.NewTypeTypeWithParam(types.NewObjectType(eventType)), true
	}
	return p.Registry.FindStructType(name)
}

// FindStructFieldNames lists event's fields.
func (p *provider) FindStructFieldNames(name string) ([]string, bool) {
	if name != eventType {
		return p.Registry.FindStructFieldNames(name)
	}
	var names []string
	for field := range eventFields {
		names = append(names, field)
	}
	return names, true
}

// FindStructFieldType finds a field of event.
func (p *provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if name != eventType {
		return p.Registry.FindStructFieldType(name, field)
	}
	t, ok := eventFields[field]
	return t, ok
}

// NativeToValue makes objects and lists of a payload maps and lists, lazily, and numbers what they are.
func (p *provider) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case map[string]any:
		return types.NewStringInterfaceMap(p, v)
	case []any:
		return list{types.NewDynamicList(p, v), v}
	case json.Number:
		return toNumber(v.String())
	}
	return p.Registry.NativeToValue(value)
}

// list is a list of a payload.
type list struct {
	traits.Lister
	native []any
}
