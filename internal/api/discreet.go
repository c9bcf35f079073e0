package api

import (
	"context"
	"errors"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
)

// refusals are what callers that may not know the hosts are told of a placement
// that did not work out.
var refusals = []struct {
	is   error
	text string
}{
	{fleet.ErrNoHosts, "there is no host to run environments on"},
	{fleet.ErrBoundHostUnschedulable, "the host that has what it goes on from cannot take it now"},
	{fleet.ErrHostPinUnschedulable, "the host that was asked for cannot take it now"},
	{fleet.ErrNoLabelMatch, "no host has the labels that were asked for"},
	{fleet.ErrNoCapacity, "no host can take it now"},
}

// discreet takes the hosts out of a placement's refusal for a caller that may
// not know them: their names, and how full each is. What is left is which gate
// refused how many, and the names of labels and regions that there are.
func discreet(p auth.Principal, err error) error {
	if err == nil || p.Can(auth.ReadHosts) {
		return err
	}
	var full *fleet.Error
	if !errors.As(err, &full) {
		return err
	}
	for _, r := range refusals {
		if !errors.Is(err, r.is) {
			continue
		}
		told := fleet.Wrap(full.Code, err, r.text)
		for _, key := range []string{fleet.DetailReason, fleet.DetailLimit} {
			if v := full.Details[key]; v != "" {
				told = told.With(key, v)
			}
		}
		if errors.Is(err, fleet.ErrBoundHostUnschedulable) {
			return told.With(fleet.DetailRemedy, "ask for fewer, end or pause another of your environments, or try again later")
		}
		return told.With(fleet.DetailRemedy, "ask for less, for other labels or another region, or try again later")
	}
	return err
}

// Discreetly has a use of a paused environment that finds no room for it say of
// the host what the caller may know.
func Discreetly(wake func(context.Context, *fleet.VM, string) (*fleet.VM, error)) func(context.Context, *fleet.VM, string) (*fleet.VM, error) {
	return func(ctx context.Context, vm *fleet.VM, actor string) (*fleet.VM, error) {
		out, err := wake(ctx, vm, actor)
		if p, ok := auth.From(ctx); ok {
			err = discreet(p, err)
		}
		return out, err
	}
}
