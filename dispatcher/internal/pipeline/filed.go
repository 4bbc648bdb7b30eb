package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/watched"
)

// filed is a schema in a file. When the file changes, a schema that compiles is used within a
// second. One that does not leaves the schema before it in use.
type filed struct {
	field, path string
	watched     *watched.Value[*jsonSchema]

	mu      sync.Mutex
	last    *jsonSchema
	problem *FileProblem
}

// FileProblem is a file that cannot be used as it is now. The content before stays in use.
type FileProblem struct {
	// Field is the field of the configuration that names the file.
	Field string
	// Err says why, with line and column where there are some, and the remedy.
	Err error
	// Since is when that was seen first, on this process's clock.
	Since time.Time
}

func newFiled(field, path string, read func(string) ([]byte, error), b *budget) *filed {
	return &filed{field: field, path: path, watched: watched.New(func() (*jsonSchema, error) {
		text, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; name a file that can be read", field, err)
		}
		compiled, err := b.compile(field, text, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", field, path, err)
		}
		return compiled, nil
	}, path)}
}

func (f *filed) String() string { return "the schema of " + f.path }

func (f *filed) get(context.Context) (*jsonSchema, error) {
	now, err := f.watched.Get()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.last, f.problem = now, nil
	case f.last == nil:
		return nil, err
	case f.problem == nil || f.problem.Err.Error() != err.Error():
		f.problem = &FileProblem{f.field, err, time.Now()}
	}
	return f.last, nil
}

// FileProblems looks at the files of schemas, and returns those that cannot be used as they are now.
func (p *Pipeline) FileProblems() (all []FileProblem) {
	for _, c := range p.checks {
		f, ok := c.schema.(*filed)
		if !ok {
			continue
		}
		_, _ = f.get(context.Background()) // its error is for a schema that was never there
		f.mu.Lock()
		if f.problem != nil {
			all = append(all, *f.problem)
		}
		f.mu.Unlock()
	}
	return all
}
