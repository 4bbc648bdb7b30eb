package replay

import (
	"context"
	"time"
)

// WithPause makes Run wait by pause.
func (r RunOptions) WithPause(pause func(context.Context, time.Duration) error) RunOptions {
	r.pause = pause
	return r
}
