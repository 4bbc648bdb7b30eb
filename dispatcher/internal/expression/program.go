package expression

import (
	"slices"

	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// A program is a tree of nodes, which cel-go plans and which runs from its root. metered puts a
// meter on each of them but constants: a unit of work for the node itself, and for calls what they do with
// their arguments. cel-go's own cost tracker would not do: it takes time that grows with the square of the
// cost, knows nothing of memory, and counts after the fact.
func (x *Expression) metered(env *environment) interpreter.InterpretableDecoratorV2 {
	return func(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		switch n := node.(type) {
		case *step, *attribute, *constructor, *call, interpreter.InterpretableConst:
			return node, nil
		case interpreter.InterpretableAttribute:
			units := 2
			if _, named := n.Attr().(interpreter.NamespacedAttribute); !named {
				units = 4 // a conditional: its branches do not count themselves
			}
			return &attribute{n, units}, nil
		case interpreter.InterpretableConstructor:
			if constants(n.InitVals()) { // made once, by cel-go
				return node, nil
			}
			return &constructor{n}, nil
		case interpreter.InterpretableCall:
			if overloads.IsTypeConversionFunction(n.Function()) && constants(n.Args()) { // likewise
				return node, nil
			}
			return x.call(n, env)
		}
		return &step{node}, nil
	}
}

func constants(nodes []interpreter.InterpretableV2) bool {
	return !slices.ContainsFunc(nodes, func(n interpreter.InterpretableV2) bool {
		_, constant := n.(interpreter.InterpretableConst)
		return !constant
	})
}

// step is a node without a cost of its own: a loop, && and ||.
type step struct{ interpreter.InterpretableV2 }

// Exec runs the node.
func (s *step) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	meterOf(frame).spend(s.ID(), 1)
	return labelled(s.ID(), s.InterpretableV2.Exec(frame))
}

// Eval runs the node.
func (s *step) Eval(vars interpreter.Activation) ref.Val {
	return s.Exec(interpreter.AsFrame(vars))
}

// attribute is a variable with what is selected from it, or a conditional.
type attribute struct {
	interpreter.InterpretableAttribute
	units int
}

// Exec runs the node.
func (a *attribute) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	meterOf(frame).spend(a.ID(), a.units)
	return labelled(a.ID(), a.InterpretableAttribute.Exec(frame))
}

// Eval runs the node.
func (a *attribute) Eval(vars interpreter.Activation) ref.Val {
	return a.Exec(interpreter.AsFrame(vars))
}

// constructor is a list or a map that is written out.
type constructor struct {
	interpreter.InterpretableConstructor
}

// Exec runs the node.
func (c *constructor) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	m := meterOf(frame)
	values := c.InitVals()
	if c.Type() == types.ListType {
		m.spend(c.ID(), 1+len(values))
		m.take(c.ID(), 24+16*len(values))
	} else {
		m.makeMap(c.ID(), len(values)/2)
	}
	return labelled(c.ID(), c.InterpretableConstructor.Exec(frame))
}

// Eval runs the node.
func (c *constructor) Eval(vars interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(vars))
}

// labelled is v, and when it is an error one that knows the node it came up at. cel-go has one error in
// common for all, which must not be written to.
func labelled(node int64, v ref.Val) ref.Val {
	if v == types.NoSuchOverloadErr() {
		return types.NewErrWithNodeID(node, "no such overload")
	}
	return types.LabelErrNode(node, v)
}

// call is a function or an operator. cel-go's own optimizations do not know it as one, so that none
// replaces it.
type call struct {
	node int64
	args []interpreter.InterpretableV2
	run  func(m *meter, args []ref.Val) ref.Val
}

// ID is the node's number.
func (c *call) ID() int64 { return c.node }

// Exec runs the node: its arguments, and then the function.
func (c *call) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	m := meterOf(frame)
	m.spend(c.node, 1)
	args := make([]ref.Val, len(c.args))
	for i, arg := range c.args {
		if args[i] = arg.Exec(frame); types.IsUnknownOrError(args[i]) {
			return args[i]
		}
	}
	return labelled(c.node, c.run(m, args))
}

// Eval runs the node.
func (c *call) Eval(vars interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(vars))
}

// call makes the node for a call that cel-go has planned.
func (x *Expression) call(n interpreter.InterpretableCall, env *environment) (interpreter.InterpretableV2, error) {
	c := &call{node: n.ID(), args: n.Args()}
	switch n.Function() {
	case operators.Equals:
		c.run = func(m *meter, args []ref.Val) ref.Val { return equal(m, c.node, args[0], args[1]) }
	case operators.NotEquals:
		c.run = func(m *meter, args []ref.Val) ref.Val { return !equal(m, c.node, args[0], args[1]) }
	case operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		c.run = func(m *meter, args []ref.Val) ref.Val { return ordered(m, c.node, n.Function(), args[0], args[1]) }
	case operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate:
		c.run = arithmetic(n)
	case operators.In, operators.OldIn:
		c.run = func(m *meter, args []ref.Val) ref.Val { return contained(m, c.node, args[0], args[1]) }
	case "matches":
		run, err := x.matches(n)
		if err != nil {
			return nil, err
		}
		c.run = run
	case "with", "without", "mask":
		c.run = payloadFunction(n, env.CELTypeAdapter())
	default:
		impl := env.functions[n.OverloadID()]
		if impl == nil {
			impl = env.functions[n.Function()]
		}
		if impl != nil && impl.NonStrict {
			return &step{n}, nil
		}
		c.run = func(m *meter, args []ref.Val) ref.Val {
			m.before(c.node, n.Function(), args)
			return m.after(c.node, invoke(impl, n, args))
		}
	}
	return c, nil
}

// invoke calls a function as cel-go does.
func invoke(impl *functions.Overload, n interpreter.InterpretableCall, args []ref.Val) ref.Val {
	if impl != nil && (len(args) == 0 || impl.OperandTrait == 0 || args[0].Type().HasTrait(impl.OperandTrait)) {
		switch {
		case len(args) == 1 && impl.Unary != nil:
			return impl.Unary(args[0])
		case len(args) == 2 && impl.Binary != nil:
			return impl.Binary(args[0], args[1])
		case impl.Function != nil:
			return impl.Function(args...)
		}
	}
	if len(args) > 0 {
		if receiver, ok := args[0].(traits.Receiver); ok {
			return receiver.Receive(n.Function(), n.OverloadID(), args[1:])
		}
	}
	return types.NewErr("no such overload")
}
