// Package gitops plays the health check that Argo CD has in config/gitops, with the interpreter that Argo CD uses.
package gitops

import (
	"os"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"
)

const dir = "../../config/gitops/"

func load(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(dir + file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestArgoCD(t *testing.T) {
	var configMap struct{ Data map[string]string }
	load(t, "argocd-cm.yaml", &configMap)
	var cases []struct {
		Name, Argo           string
		Generation, Observed float64
		Conditions           []any
	}
	load(t, "testdata/cases.yaml", &cases)
	if len(configMap.Data) == 0 || len(cases) == 0 {
		t.Fatalf("%d scripts and %d cases", len(configMap.Data), len(cases))
	}
	for key, script := range configMap.Data {
		for _, c := range cases {
			status := map[string]any{"observedGeneration": c.Observed}
			if c.Conditions != nil {
				status["conditions"] = c.Conditions
			}
			object := map[string]any{"metadata": map[string]any{"generation": c.Generation}, "status": status}
			health, message := play(t, script, object)
			if health != c.Argo || message == "" {
				t.Errorf("%s: %s: %s (%s), want %s", key, c.Name, health, message, c.Argo)
			}
			if strings.Contains(c.Name, "template") && message != "InvalidPodTemplate: spec.pods.template is wrong." {
				t.Errorf("%s: the message is %q", key, message)
			}
		}
	}
}

// play runs a script as Argo CD does: without libraries but the base, tables and strings, the object as obj.
func play(t *testing.T, script string, object map[string]any) (health, message string) {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	l.SetGlobal("obj", toLua(l, object))
	if err := l.DoString(script); err != nil {
		t.Fatal(err)
	}
	table, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %s, want a table", l.Get(-1).Type())
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String()
}

func toLua(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		table := l.NewTable()
		for _, e := range v {
			table.Append(toLua(l, e))
		}
		return table
	case map[string]any:
		table := l.NewTable()
		for key, e := range v {
			table.RawSetString(key, toLua(l, e))
		}
		return table
	}
	return lua.LNil
}
