// Package rules checks objects as the API server does: by package schema, and by the CEL rules of the same definitions, each
// with the API server's words.
//
// A rule is compiled when an object has the field that it is about.
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

	"github.com/outbox-operator/outbox-operator/api/spec/schema"
)

// Check sets the defaults in an object, and returns all that is wrong with it, sorted. The object is as [schema.Decode] makes
// it. See [schema.Schema.Check] for when rules are evaluated.
func Check(of *schema.Schema, object any) []schema.Problem {
	all, whole := of.Check(object)
	if whole {
		evaluate(of, "", object, &all)
	}
	slices.SortFunc(all, func(a, b schema.Problem) int { return strings.Compare(a.Error(), b.Error()) })
	return all
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

// programs has for each rule a function that compiles it once.
var programs sync.Map

// compiled is the program of a rule. It is nil for one that compares with the object from before, which a file has none of.
func compiled(r *schema.Rule) (cel.Program, error) {
	once, _ := programs.LoadOrStore(r, sync.OnceValues(func() (cel.Program, error) { return compile(r.Rule) }))
	return once.(func() (cel.Program, error))()
}

func compile(rule string) (cel.Program, error) {
	if strings.Contains(rule, "oldSelf") {
		return nil, nil
	}
	text := strings.ReplaceAll(rule, "__namespace__", "`namespace`")
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
func evaluate(s *schema.Schema, path string, v any, all *[]schema.Problem) {
	for _, rule := range s.Rules {
		program, err := compiled(rule)
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
		*all = append(*all, schema.Problem{Path: strings.TrimPrefix(path+rule.FieldPath, "."), Message: "Invalid value: " + shown(v) + message})
	}
	switch x := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(x)) {
			if of := s.Properties[name]; of != nil {
				evaluate(of, strings.TrimPrefix(path+"."+name, "."), x[name], all)
			}
		}
	case []any:
		for i, item := range x {
			evaluate(s.Items, fmt.Sprintf("%s[%d]", path, i), item, all)
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
