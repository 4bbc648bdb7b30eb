package storetest

import (
	"context"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Hooked is a store that calls functions around each call of another one.
type Hooked struct {
	dispatcher.Store
	// Before, when set, is called first. It may take its time. When it fails, the call is not made and fails with its error.
	Before func(ctx context.Context, c Call) error
	// After, when set, is called when the call has succeeded. When it fails the call does, too, as if its response were lost.
	After func(ctx context.Context, c Call) error
}

// Call is a call of a store.
type Call struct {
	// Verb is the method in small characters: claim, ack, nack, release, extend, begin, topics or schema. Depth has no hook.
	Verb string
	// Claim is the request of a claim, and Leases are those of the rows that the other verbs name.
	Claim  dispatcher.ClaimRequest
	Leases []dispatcher.Lease
}

// Rows is how many rows the call is for at most.
func (c Call) Rows() (n int) {
	for _, share := range c.Claim.Shares {
		n += share.Limit
	}
	return n + len(c.Leases)
}

func around[T any](ctx context.Context, h *Hooked, c Call, do func() (T, error)) (out T, err error) {
	if h.Before != nil {
		if err := h.Before(ctx, c); err != nil {
			return out, err
		}
	}
	result, err := do()
	if err == nil && h.After != nil {
		if err := h.After(ctx, c); err != nil {
			return out, err
		}
	}
	return result, err
}

type lost = []dispatcher.Lease

// Claim leases rows. It fails when a hook or the store does.
func (h *Hooked) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	return around(ctx, h, Call{Verb: "claim", Claim: req}, func() (dispatcher.Claimed, error) { return h.Store.Claim(ctx, req) })
}

// Ack marks rows delivered. It fails when a hook or the store does.
func (h *Hooked) Ack(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return around(ctx, h, Call{Verb: "ack", Leases: leases}, func() (lost, error) { return h.Store.Ack(ctx, leases) })
}

// Nack records failures. It fails when a hook or the store does.
func (h *Hooked) Nack(ctx context.Context, failures []dispatcher.Failure) ([]dispatcher.Lease, error) {
	c := Call{Verb: "nack"}
	for _, f := range failures {
		c.Leases = append(c.Leases, f.Lease)
	}
	return around(ctx, h, c, func() (lost, error) { return h.Store.Nack(ctx, failures) })
}

// Release gives rows back. It fails when a hook or the store does.
func (h *Hooked) Release(ctx context.Context, returns []dispatcher.Return) ([]dispatcher.Lease, error) {
	c := Call{Verb: "release"}
	for _, r := range returns {
		c.Leases = append(c.Leases, r.Lease)
	}
	return around(ctx, h, c, func() (lost, error) { return h.Store.Release(ctx, returns) })
}

// Extend extends leases. It fails when a hook or the store does.
func (h *Hooked) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	return around(ctx, h, Call{Verb: "extend", Leases: leases}, func() (lost, error) { return h.Store.Extend(ctx, leases, lease) })
}

// Begin counts deliveries of suspects. It fails when a hook or the store does.
func (h *Hooked) Begin(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return around(ctx, h, Call{Verb: "begin", Leases: leases}, func() (lost, error) { return h.Store.Begin(ctx, leases) })
}

// Outlive takes back counts of suspects. It fails when a hook or the store does.
func (h *Hooked) Outlive(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return around(ctx, h, Call{Verb: "outlive", Leases: leases}, func() (lost, error) { return h.Store.Outlive(ctx, leases) })
}

// Topics lists topics. It fails when a hook or the store does.
func (h *Hooked) Topics(ctx context.Context) ([]string, error) {
	return around(ctx, h, Call{Verb: "topics"}, func() ([]string, error) { return h.Store.Topics(ctx) })
}

// Schema compares the schema. It fails when a hook or the store does.
func (h *Hooked) Schema(ctx context.Context) (dispatcher.Schema, error) {
	return around(ctx, h, Call{Verb: "schema"}, func() (dispatcher.Schema, error) { return h.Store.Schema(ctx) })
}
