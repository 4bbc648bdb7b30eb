package rules

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
)

// rule is a condition in CEL.
type rule struct {
	Rule      string `json:"rule"`
	Message   string `json:"message"`
	FieldPath string `json:"fieldPath"`

	once    sync.Once
	program cel.Program
	err     error
}

// environment has the variable self, and what Kubernetes adds to CEL, as far as the definitions use it.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("self", cel.DynType), cel.OptionalTypes(), ext.Strings(), cel.EnableIdentifierEscapeSyntax(),
		cel.Function("indexOf", cel.MemberOverload("list_index_of", []*cel.Type{cel.ListType(cel.DynType), cel.DynType}, cel.IntType, cel.BinaryBinding(indexOf))),
		ofText("dns1123Subdomain", cel.BoolType, func(s string) ref.Val { return types.Bool(len(s) <= 253 && subdomain.MatchString(s)) }),
		ofText("dns1123Label", cel.BoolType, func(s string) ref.Val { return types.Bool(len(s) <= 63 && label.MatchString(s)) }),
		ofText("isURL", cel.BoolType, func(s string) ref.Val {
			u, err := url.ParseRequestURI(s)
			return types.Bool(err == nil && (u.Host != "" || u.Path != ""))
		}),
		ofText("portOf", cel.StringType, func(s string) ref.Val {
			u, err := url.ParseRequestURI(s)
			if err != nil {
				return types.WrapErr(err)
			}
			return types.String(u.Port())
		}))
})

var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

func indexOf(list, v ref.Val) ref.Val {
	for i, all := types.Int(0), list.(traits.Lister); i < all.Size().(types.Int); i++ {
		if all.Get(i).Equal(v) == types.True {
			return i
		}
	}
	return types.Int(-1)
}

// ofText declares a function of a string.
func ofText(name string, to *cel.Type, f func(string) ref.Val) cel.EnvOption {
	return cel.Function(name, cel.Overload(name+"_string", []*cel.Type{cel.DynType}, to, cel.UnaryBinding(func(v ref.Val) ref.Val {
		s, _ := v.Value().(string)
		return f(s)
	})))
}

// What Kubernetes writes with types of its own, and the functions above that mean the same.
const argument = `\(((?:[^()]|\([^()]*\))*)\)`

var (
	format = regexp.MustCompile(`!?format\.(\w+)\(\)\.validate` + argument + `\.hasValue\(\)`)
	port   = regexp.MustCompile(`url` + argument + `\.getPort\(\)`)
)

// compiled is the program of a rule. It is nil for one that compares with the object from before, which a file has none of.
func (r *rule) compiled() (cel.Program, error) {
	r.once.Do(func() { r.program, r.err = r.compile() })
	return r.program, r.err
}

func (r *rule) compile() (cel.Program, error) {
	if strings.Contains(r.Rule, "oldSelf") {
		return nil, nil
	}
	text := strings.ReplaceAll(r.Rule, "__namespace__", "`namespace`")
	text = format.ReplaceAllStringFunc(text, func(call string) string {
		negated := "!"
		if strings.HasPrefix(call, "!") { // no complaint: the text has the format
			negated = ""
		}
		return negated + format.ReplaceAllString(call, "$1($2)")
	})
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(port.ReplaceAllString(text, "portOf($1)"))
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	return env.Program(ast)
}

// evaluate reports the rules that are not true of a value or of one within it.
func (s *Schema) evaluate(path string, v any, r report) {
	for _, rule := range s.Rules {
		program, err := rule.compiled()
		if err != nil {
			panic(fmt.Sprintf("rule %s of %s: %v", rule.Rule, path, err)) // a test compiles them all
		}
		if program == nil {
			continue
		}
		out, _, err := program.Eval(map[string]any{"self": v})
		if err == nil && out.Value() == true {
			continue
		}
		message := rule.Message
		if err != nil {
			message = err.Error()
		}
		r(strings.TrimPrefix(path+rule.FieldPath, "."), "Invalid value: %s%s", shown(v), message)
	}
	switch x := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(x)) {
			if of := s.Properties[name]; of != nil {
				of.evaluate(at(path, name), x[name], r)
			}
		}
	case []any:
		for i, item := range x {
			s.Items.evaluate(fmt.Sprintf("%s[%d]", path, i), item, r)
		}
	}
}

// shown is a value as the API server shows it before a rule's message.
func shown(v any) string {
	switch x := v.(type) {
	case string:
		return fmt.Sprintf("%q: ", x)
	case int64, bool:
		return fmt.Sprintf("%v: ", x)
	}
	return ""
}
