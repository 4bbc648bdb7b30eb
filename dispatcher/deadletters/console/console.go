// Package console shows dispatchers and their dead letters in a browser on the user's own machine, and replays and discards
// there. It is for any [Backend]: of kubectl outbox, which has the user's rights in the cluster, and of the dispatcher, which has
// the login of a file. The pages are made of what the commands print, and a button does what the line next to it does.
package console

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Name is the name of a dispatcher, and its namespace of Kubernetes: "-" without Kubernetes.
type Name struct{ Namespace, Name string }

// Path is where its page is.
func (n Name) Path() string {
	return "/d/" + url.PathEscape(n.Namespace) + "/" + url.PathEscape(n.Name)
}

// String is the name as people read it.
func (n Name) String() string { return strings.TrimPrefix(n.Namespace+"/"+n.Name, "-/") }

// Backend reads and changes, as its program's commands do. Its methods are safe for concurrent use, and each fails when what it
// reads cannot be read, or the user may not.
type Backend interface {
	// Fleet is a page of the dispatchers. next is empty, or the Next of the page before.
	Fleet(ctx context.Context, next string) (Fleet, error)
	// Report is how a dispatcher is, and what to do.
	Report(ctx context.Context, n Name) (Report, error)
	// Open returns a source of dead letters, and a function that closes it.
	Open(ctx context.Context, n Name) (deadletters.Source, func(), error)
	// Rights say what the user may do.
	Rights(ctx context.Context, n Name) Rights
	// Replays are the operations on dead letters, the newest first.
	Replays(ctx context.Context, n Name) ([]Replay, error)
	// Begin begins an operation and returns its id. A second request with the same ID has the operation of the first.
	Begin(ctx context.Context, n Name, r Request) (id string, err error)
	// Stop stops one: what waits stays open.
	Stop(ctx context.Context, n Name, id string) error
	// SetState pauses or resumes.
	SetState(ctx context.Context, n Name, state spec.State) error
	// Line is the command line for something that a button does: command is such as "dead replay".
	Line(n Name, command, arguments string) string
}

// Tryer is a [Backend] that has a file, whose configuration it tries: Try puts past events through it, and sends none.
type Tryer interface {
	Try(ctx context.Context, n Name) (Tried, error)
}

// Tried is what became of Rows past events, of which Different come out otherwise than with what is named in Against. Note says
// what was left out. Command is the arguments of the command that does the same.
type Tried struct {
	Against, Note, Command string
	Rows, Different        int
	Oldest, Newest         time.Time
	Differences            []Difference
}

// Difference is one way in which events come out otherwise, with the ids of some.
type Difference struct {
	Before, After, Topic, What string
	Count                      int
	Events                     []string
}

// Fleet is a page of dispatchers, of which the reports have what is known without their pods. Next continues the list, and is
// empty on the last page. Note says what is missing, such as namespaces that the user may not see.
type Fleet struct {
	Reports    []Report
	Next, Note string
}

// Rights say why the user may not do something, and what to do about it. Empty: he may.
type Rights struct{ Replay, State string }

// Request is what a form says. ID is the same for each use of one form. Expires is for how long events whose time is over are worth
// sending again, 0 without.
type Request struct {
	ID, Reason   string
	Action       spec.ReplayAction
	Filter       deadletters.Filter
	Rate, Canary int32
	Expires      time.Duration
	DryRun       bool
}

// Replay is an operation on dead letters. State is one word, Line the progress as the commands print it, and Why what is in the
// way. Ended says that nothing more happens, and Failed that it ended badly. Progress is nil until the set is fixed. A dry run
// has its Filter.
type Replay struct {
	ID, Action, By, Reason, State, Line string
	DryRun, Ended, Failed               bool
	Began                               time.Time
	Canary                              int
	Filter                              deadletters.Filter
	Why                                 []string
	Progress                            *status.Progress
}
