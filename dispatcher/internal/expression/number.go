package expression

import (
	"cmp"
	"math"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// long is a number of a payload that no int, uint or double holds: 123456789012345678901234567890, 1e999
// or a decimal of 25 digits. It is computed with as a double, and goes out as it was written.
type long struct {
	types.Double
	text string
}

// ConvertToType makes a string without a loss, and everything else of the double.
func (l long) ConvertToType(t ref.Type) ref.Val {
	if t == types.StringType {
		return types.String(l.text)
	}
	return l.Double.ConvertToType(t)
}

// ConvertToNative is the double's.
func (l long) ConvertToNative(t reflect.Type) (any, error) { return l.Double.ConvertToNative(t) }

// Equal compares with a number of any type. The double's knows no other long, not even itself.
func (l long) Equal(other ref.Val) ref.Val {
	order, ok := compareNumbers(l, other)
	return types.Bool(ok && order == types.IntZero)
}

// toNumber makes an int of a whole number, however it is written, a uint of one that only a uint holds,
// a double of what a double holds, and a long of everything else.
func toNumber(s string) ref.Val {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return types.Int(i)
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return types.Uint(u)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || (len(s) > 15 || f == 0) && !same(s, strconv.FormatFloat(f, 'e', -1, 64)) {
		return long{types.Double(f), s}
	}
	if f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		return types.Int(f)
	}
	return types.Double(f)
}

// same reports whether two texts are the same decimal number.
func same(a, b string) bool {
	digitsA, pointA := decimal(a)
	digitsB, pointB := decimal(b)
	return digitsA == digitsB && (pointA == pointB || digitsA == "") && (a[0] == '-') == (b[0] == '-')
}

// decimal returns the digits of a number without zeros around them, and where its point is.
func decimal(s string) (digits string, point int) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(s, "-")), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	point, _ = strconv.Atoi(strings.TrimPrefix(exponent, "+"))
	digits = strings.TrimLeft(whole+fraction, "0")
	point += len(whole) - (len(whole) + len(fraction) - len(digits))
	return strings.TrimRight(digits, "0"), point
}

// mixed declares arithmetic for numbers of different types, whose outcome is of the type that it needs.
func mixed() []cel.EnvOption {
	var options []cel.EnvOption
	kinds := []*cel.Type{cel.IntType, cel.UintType, cel.DoubleType}
	for name, function := range map[string]string{
		"add": operators.Add, "subtract": operators.Subtract, "multiply": operators.Multiply, "divide": operators.Divide, "modulo": operators.Modulo,
	} {
		for _, a := range kinds {
			for _, b := range kinds {
				if a != b || a == cel.DoubleType && name == "modulo" {
					id := mixedOverload + name + "_" + a.String() + "_" + b.String()
					options = append(options, cel.Function(function, cel.Overload(id, []*cel.Type{a, b}, cel.DynType)))
				}
			}
		}
	}
	return append(options, cel.CrossTypeNumericComparisons(true))
}

// mixedOverload is how the names of mixed's overloads begin.
const mixedOverload = "outbox_mixed_"

// arithmetic is an operator. Where the types are known when it is compiled and the same, it is CEL's own:
// 7 / 2 is 3. Else numbers are numbers, whatever their types: payload.quantity / 2 is 3.5 for 7.
func arithmetic(n interpreter.InterpretableCall) func(*meter, []ref.Val) ref.Val {
	node, operator := n.ID(), n.Function()
	free := n.OverloadID() == "" || strings.HasPrefix(n.OverloadID(), mixedOverload)
	return func(m *meter, args []ref.Val) ref.Val {
		a, isNumber := number(args[0])
		if len(args) == 1 {
			return negated(a, free && isNumber)
		}
		if b, ok := number(args[1]); free && isNumber && ok {
			return compute(operator, a, b)
		}
		if operator == operators.Add {
			return added(m, node, args[0], args[1])
		}
		return celArithmetic(operator, args[0], args[1])
	}
}

// celArithmetic is CEL's own arithmetic, for values of one type.
func celArithmetic(operator string, a, b ref.Val) ref.Val {
	if l, ok := a.(long); ok {
		a = l.Double
	}
	if l, ok := b.(long); ok {
		b = l.Double
	}
	switch operator {
	case operators.Add:
		if x, ok := a.(traits.Adder); ok {
			return x.Add(b)
		}
	case operators.Subtract:
		if x, ok := a.(traits.Subtractor); ok {
			return x.Subtract(b)
		}
	case operators.Multiply:
		if x, ok := a.(traits.Multiplier); ok {
			return x.Multiply(b)
		}
	case operators.Divide:
		if x, ok := a.(traits.Divider); ok {
			return x.Divide(b)
		}
	case operators.Modulo:
		if x, ok := a.(traits.Modder); ok {
			return x.Modulo(b)
		}
	}
	return types.NewErr("no such overload")
}

// number returns a value as a number: a double that is whole as an int, a long as a double.
func number(v ref.Val) (ref.Val, bool) {
	switch n := v.(type) {
	case types.Int, types.Uint:
		return v, true
	case long:
		return n.Double, true
	case types.Double:
		if f := float64(n); f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return types.Int(f), true
		}
		return v, true
	}
	return v, false
}

// compute computes with numbers of any types. A whole outcome that an int or a uint holds is exact.
func compute(operator string, a, b ref.Val) ref.Val {
	if x, ok := a.(types.Int); ok && small(x) { // at once, with nothing that could go over
		if y, ok := b.(types.Int); ok && small(y) {
			switch operator {
			case operators.Add:
				return x + y
			case operators.Subtract:
				return x - y
			case operators.Multiply:
				return x * y
			}
		}
	}
	if zero(b) && operator == operators.Divide {
		return types.NewErr("division by zero")
	}
	if zero(b) && operator == operators.Modulo {
		return types.NewErr("modulus by zero")
	}
	x, y := whole(a), whole(b)
	if x == nil || y == nil {
		return fractional(operator, float(a), float(b))
	}
	var made big.Int
	switch operator {
	case operators.Add:
		made.Add(x, y)
	case operators.Subtract:
		made.Sub(x, y)
	case operators.Multiply:
		made.Mul(x, y)
	case operators.Modulo:
		made.Rem(x, y)
	case operators.Divide:
		rest := new(big.Int)
		if made.QuoRem(x, y, rest); rest.Sign() != 0 {
			return types.Double(float(a) / float(b))
		}
	}
	return fromWhole(&made)
}

func fractional(operator string, a, b float64) ref.Val {
	switch operator {
	case operators.Add:
		return types.Double(a + b)
	case operators.Subtract:
		return types.Double(a - b)
	case operators.Multiply:
		return types.Double(a * b)
	case operators.Divide:
		return types.Double(a / b)
	default:
		return types.Double(math.Mod(a, b))
	}
}

// negated is -v.
func negated(v ref.Val, free bool) ref.Val {
	if free {
		if x := whole(v); x != nil {
			return fromWhole(x.Neg(x))
		}
	}
	if n, ok := v.(traits.Negater); ok {
		return n.Negate()
	}
	return types.NewErr("no such overload")
}

// whole is a new big.Int, or nil for a double.
func whole(v ref.Val) *big.Int {
	switch n := v.(type) {
	case types.Int:
		return big.NewInt(int64(n))
	case types.Uint:
		return new(big.Int).SetUint64(uint64(n))
	}
	return nil
}

func fromWhole(i *big.Int) ref.Val {
	switch {
	case i.IsInt64():
		return types.Int(i.Int64())
	case i.IsUint64():
		return types.Uint(i.Uint64())
	}
	f, _ := new(big.Float).SetInt(i).Float64()
	return types.Double(f)
}

func small(i types.Int) bool { return -1<<31 < i && i < 1<<31 }

func zero(v ref.Val) bool { return float(v) == 0 }

func float(v ref.Val) float64 {
	switch n := v.(type) {
	case types.Int:
		return float64(n)
	case types.Uint:
		return float64(n)
	case types.Double:
		return float64(n)
	}
	return math.NaN()
}

// compareNumbers compares numbers of any types, exactly.
func compareNumbers(a, b ref.Val) (order ref.Val, ok bool) {
	if x, ok := a.(long); ok {
		if y, ok := b.(long); ok && digits(x.text) && digits(y.text) {
			return types.Int(compareDigits(x.text, y.text)), true
		}
	}
	x, isNumber := number(a)
	y, ok := number(b)
	if !ok || !isNumber {
		return nil, false
	}
	if whole, ok := x.(types.Double); ok && whole != whole { // NaN: neither less nor more
		return nil, false
	}
	return x.(traits.Comparer).Compare(y), true
}

// digits reports whether a number is written without a point and an exponent.
func digits(s string) bool { return !strings.ContainsAny(s, ".eE") }

// compareDigits compares whole numbers as they are written in JSON, which has no zeros before them.
func compareDigits(a, b string) int {
	negative := strings.HasPrefix(a, "-")
	if negative != strings.HasPrefix(b, "-") {
		if negative {
			return -1
		}
		return 1
	}
	order := cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	if negative {
		return -order
	}
	return order
}
