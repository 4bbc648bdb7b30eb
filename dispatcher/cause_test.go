package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What is said further inside counts first, and what is not said is taken from around it.
// CONTRACT: C-41
func TestInnermostCauseCounts(t *testing.T) {
	with := dispatcher.WithCause
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		err  error
		want dispatcher.Cause
	}{
		"no cause is given": {failed, dispatcher.Cause{Class: "handler"}},
		"no handler":        {fmt.Errorf("topic: %w", dispatcher.ErrNoHandler), dispatcher.Cause{Class: "handler", Code: "NoHandler"}},
		"no time":           {fmt.Errorf("gone: %w", context.DeadlineExceeded), dispatcher.Cause{Class: "handler", Code: "Timeout"}},
		"class around a code": {with(dispatcher.Cause{Class: "http"}, dispatcher.Permanent("", fmt.Errorf("x: %w", with(dispatcher.Cause{Code: "422"}, failed)))),
			dispatcher.Cause{Class: "http", Code: "422"}},
		"inner first": {with(dispatcher.Cause{Class: "kafka", Code: "ConnectionFailed"}, with(dispatcher.Cause{Class: "route", Place: "/a"}, failed)),
			dispatcher.Cause{Class: "route", Code: "ConnectionFailed", Place: "/a"}},
		"code alone": {with(dispatcher.Cause{Code: "7"}, failed), dispatcher.Cause{Class: "handler", Code: "7"}},
		"what is not a line of text": {with(dispatcher.Cause{Class: "a\x00", Code: "b\nc\xff", Place: strings.Repeat("ä", 200)}, failed),
			dispatcher.Cause{Class: "a\uFFFD", Code: "b\uFFFDc\uFFFD", Place: strings.Repeat("ä", 100)}},
	} {
		if got := dispatcher.CauseOf(c.err); got != c.want || !utf8.ValidString(got.Place) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if !errors.Is(c.err, failed) && name != "no handler" && name != "no time" {
			t.Errorf("%s: the error is not in it", name)
		}
	}
}

// A group is identified by its topic, reason and cause, and by nothing else. The value is that of a row's column.
// CONTRACT: C-41
func TestFingerprintIsOfTopicReasonAndCause(t *testing.T) {
	group := dispatcher.Cause{Class: "http", Code: "422"}
	need.Want(t, "23597294", "the fingerprint is %s, and would be another in new versions", dispatcher.Fingerprint("orders", dispatcher.ReasonPermanentFailure, group))
	seen := map[string]bool{}
	for _, topic := range []string{"orders", "refunds"} {
		for _, reason := range []dispatcher.DeadReason{dispatcher.ReasonPermanentFailure, dispatcher.ReasonPoisonMessage} {
			for _, c := range []dispatcher.Cause{{}, {Class: "a"}, {Code: "a"}, {Place: "a"}} {
				seen[dispatcher.Fingerprint(topic, reason, c)] = true
			}
		}
	}
	need.Want(t, 16, "16 groups have %d fingerprints", len(seen))
}

// Every reason and every class has a sentence of what to do. Classes other than the constants are sinks.
// REQUIREMENT: STORAGE-19
func TestEveryReasonHasItsRecovery(t *testing.T) {
	reasons, classes := constants(t, "errors.go", "Reason"), append(constants(t, "errors.go", "Class"), "http", "")
	need.Must(t, len(reasons) == 5 && len(classes) == 10, "reasons %q, classes %q", reasons, classes)
	sentences := map[string]bool{}
	for _, reason := range reasons {
		for _, class := range classes {
			text := dispatcher.Recovery(dispatcher.DeadReason(reason), class)
			need.That(t, strings.HasSuffix(text, ".") && strings.Contains(text, "replay") && !strings.Contains(text, "\n"), "%s, %s: %q", reason, class, text)
			sentences[text] = true
		}
	}
	need.Want(t, 11, "%d sentences, want 11", len(sentences))
	for want, text := range map[string]string{
		"outcome":        dispatcher.Recovery(dispatcher.ReasonProcessingTimeout, dispatcher.ClassLease),
		"schema":         dispatcher.Recovery(dispatcher.ReasonSchemaValidationFailed, dispatcher.ClassSchema),
		"rule":           dispatcher.Recovery(dispatcher.ReasonSchemaValidationFailed, dispatcher.ClassRule),
		"route":          dispatcher.Recovery(dispatcher.ReasonMaxRetriesExceeded, dispatcher.ClassRoute),
		"transformation": dispatcher.Recovery(dispatcher.ReasonMaxRetriesExceeded, dispatcher.ClassMask),
		"header":         dispatcher.Recovery(dispatcher.ReasonMaxRetriesExceeded, dispatcher.ClassMessage),
		"row":            dispatcher.Recovery(dispatcher.ReasonPoisonMessage, dispatcher.ClassDecode),
		"panicked":       dispatcher.Recovery(dispatcher.ReasonPoisonMessage, dispatcher.ClassHandler),
		"refuses":        dispatcher.Recovery(dispatcher.ReasonPermanentFailure, "kafka"),
		"destination":    dispatcher.Recovery(dispatcher.ReasonMaxRetriesExceeded, "kafka"),
	} {
		need.That(t, strings.Contains(text, want), "%q does not say %q", text, want)
	}
}

// constants are the values of a file's constants whose names begin so.
func constants(t *testing.T, file, prefix string) (values []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	need.OK(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, prefix) {
			return true
		}
		if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			value, err := strconv.Unquote(literal.Value)
			need.OK(t, err)
			values = append(values, value)
		}
		return true
	})
	return values
}
