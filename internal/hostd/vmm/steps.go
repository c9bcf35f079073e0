package vmm

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
)

// Step is one step of something that is undone as a whole.
type Step struct {
	Name string
	Do   func(context.Context) error
}

// Steps runs steps in order up to the first that fails, whose error names it.
// told hears of each before it begins; a failpoint of the prefix and the name
// comes after it. dir is where the host's disk is.
func Steps(ctx context.Context, prefix, dir string, told func(string), steps []Step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if told != nil {
			told(s.Name)
		}
		err := s.Do(ctx)
		if err == nil {
			err = failpoint.Hit(prefix + s.Name)
		}
		if err != nil {
			return explain(s.Name, dir, err)
		}
	}
	return nil
}

// explain gives an error its step, and one of the host's disk its remedy.
func explain(step, dir string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fleet.Errorf(fleet.CodeUnavailable, "%w: the host's disk is full", fleet.ErrNoCapacity).
			With(fleet.DetailStep, step).
			With(fleet.DetailScope, "disk").
			With(fleet.DetailUsage, err.Error()).
			With(fleet.DetailRemedy, "free space below "+dir+", or destroy environments")
	}
	var fe *fleet.Error
	if errors.As(err, &fe) {
		if fe.Details[fleet.DetailStep] == "" {
			return fe.With(fleet.DetailStep, step)
		}
		return err
	}
	return fmt.Errorf("%s: %w", step, err)
}
