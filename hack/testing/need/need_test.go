package need_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var errMissing = errors.New("no broker on this machine; install the package broker")

// What is missing is a failure in CI and a skip elsewhere, both with the reason. What is there and does
// not start is a failure everywhere.
func TestServerFailsInCIAndSkipsElsewhere(t *testing.T) {
	if kind := os.Getenv("NEED_TEST"); kind != "" {
		var err error
		switch kind {
		case "missing":
			err = fmt.Errorf("%w (apt-get: exit status 100)", errMissing)
		case "broken":
			err = errors.New("the broker ended at once")
		}
		need.Server(t, err, errors.New("another"), errMissing)
		return
	}
	for _, test := range []struct{ kind, ci, line, text string }{
		{"missing", "true", "--- FAIL: TestServerFailsInCIAndSkipsElsewhere", "no broker on this machine; install the package broker (apt-get: exit status 100); CI is set"},
		{"missing", "woodpecker", "--- FAIL: TestServerFailsInCIAndSkipsElsewhere", "unset CI to skip the test"},
		{"missing", "false", "--- SKIP: TestServerFailsInCIAndSkipsElsewhere", "install the package broker (apt-get: exit status 100)"},
		{"missing", "", "--- SKIP: TestServerFailsInCIAndSkipsElsewhere", "install the package broker"},
		{"broken", "true", "--- FAIL: TestServerFailsInCIAndSkipsElsewhere", "the broker ended at once"},
		{"broken", "", "--- FAIL: TestServerFailsInCIAndSkipsElsewhere", "the broker ended at once"},
		{"there", "true", "--- PASS: TestServerFailsInCIAndSkipsElsewhere", ""},
	} {
		t.Run(test.kind+" CI="+test.ci, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServerFailsInCIAndSkipsElsewhere$", "-test.v")
			cmd.Env = append(os.Environ(), "NEED_TEST="+test.kind, "CI="+test.ci)
			out, err := cmd.CombinedOutput()
			if (err != nil) != strings.Contains(test.line, "FAIL") || !strings.Contains(string(out), test.line) || !strings.Contains(string(out), test.text) {
				t.Errorf("%v, want %s and %q:\n%s", err, test.line, test.text, out)
			}
		})
	}
}

// A test that skips gives a reason that was known when it was written: it takes long, it is for another
// system. An error as the reason is something that is missing, which is this package's to decide.
func TestSkipsHaveWrittenReasons(t *testing.T) {
	t.Parallel()
	skips := 0
	err := filepath.WalkDir("../../..", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || path == filepath.Join("..", "..", "..", "hack", "testing", "need", "need.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "Skip" && method.Sel.Name != "Skipf" && method.Sel.Name != "SkipNow" {
				return true
			}
			skips++
			if len(call.Args) != 1 || !isText(call.Args[0]) {
				t.Errorf("%s: the reason of a skip is not a text; where something is missing, call need.Server or need.Missing", files.Position(call.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if skips < 10 {
		t.Errorf("%d skips were seen: this test looks in the wrong place", skips)
	}
}

func isText(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && literal.Kind == token.STRING
}

// said is a test that keeps what is reported to it.
type said struct {
	testing.TB
	all []string
}

func (*said) Helper()                          {}
func (s *said) Fatal(args ...any)              { s.all = append(s.all, fmt.Sprint(args...)) }
func (s *said) Fatalf(format string, a ...any) { s.all = append(s.all, fmt.Sprintf(format, a...)) }
func (s *said) Errorf(format string, a ...any) { s.all = append(s.all, fmt.Sprintf(format, a...)) }

func TestWrongValuesAndErrorsAreReported(t *testing.T) {
	t.Parallel()
	s := &said{}
	need.OK(s, need.Err(fmt.Sscan("7", new(int))))
	need.Want(s, 2, "%d events, want %d", 2)
	need.That(s, true, "no event")
	need.Must(s, true, "no event")
	need.Fails(s, "EO", "%v", io.EOF)
	need.WantAll(s, []int{}, "%v", nil)
	need.WantAll(t, nil, "%q, want none", s.all)

	need.OK(s, need.Err(fmt.Sscan("", new(int))))
	need.Want(s, 2, "%s: %d events, want %d", 3, "orders")
	need.Want(s, 2, "%d events", 3)
	need.That(s, false, "%d lost", 4)
	need.Must(s, false, "%d left", 5)
	need.Fails(s, "EO", "%s: %v, want %q", nil, "orders")
	need.Fails(s, "full", "%v, want %s", io.EOF)
	need.WantAll(s, []int{1}, "got %v, want %v", []int{1, 2})
	need.WantAll(t, []string{"EOF", "orders: 3 events, want 2", "3 events", "4 lost", "5 left", `orders: <nil>, want "EO"`, "EOF, want full", "got [1 2], want [1]"}, "%q, want %q", s.all)
}
