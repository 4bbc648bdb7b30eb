package replay

import (
	"context"
	"time"
)

// WithPause makes Run wait by pause.
func (r Running) WithPause(pause func(context.Context, time.Duration) error) Running {
	r.pause = pause
	return r
}
