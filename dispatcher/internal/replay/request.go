package replay

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Validate reports everything that is wrong with a request and its filter, each with its remedy.
// The error is nil when nothing is wrong.
func Validate(o config.ReplayRequest) error {
	err := deadletters.Filter(o.Filter).Validate()
	if err != nil {
		err = fmt.Errorf("filter: %w", err)
	}
	return errors.Join(o.Validate(), err)
}

// complete is the request with its defaults, if nothing is wrong with it.
func complete(o config.ReplayRequest) (config.ReplayRequest, error) {
	if o.ID == uuid.Nil {
		o.ID = uuid.New()
	}
	o.ApplyDefaults()
	return o, Validate(o)
}
