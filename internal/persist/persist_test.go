package persist

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// store answers with errors, in this order, and then with nil.
type store struct {
	errs  []error
	calls int
}

func (s *store) Update(context.Context, func(*state.Tx) error) (state.Commit, error) {
	s.calls++
	if s.calls <= len(s.errs) {
		return state.Commit{}, s.errs[s.calls-1]
	}
	return state.Commit{}, nil
}

func TestUpdate(t *testing.T) {
	down, other := fleet.ErrStoreUnavailable, errors.New("no")
	for name, c := range map[string]struct {
		errs  []error
		limit time.Duration
		want  error
		calls int
		took  time.Duration
	}{
		"at once":            {calls: 1},
		"after an outage":    {errs: []error{down, down, down}, calls: 4, took: (50 + 100 + 200) * time.Millisecond},
		"refused":            {errs: []error{other}, want: other, calls: 1},
		"no leader any more": {errs: []error{down, fleet.ErrNotLeader}, want: fleet.ErrNotLeader, calls: 2, took: 50 * time.Millisecond},
		"given up":           {errs: []error{down, down, down, down}, limit: 200 * time.Millisecond, want: context.DeadlineExceeded, calls: 3, took: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				s, began := &store{errs: c.errs}, time.Now()
				if err := Update(ctx, s, nil); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if s.calls != c.calls || time.Since(began) != c.took {
					t.Errorf("%d calls in %s, want %d in %s", s.calls, time.Since(began), c.calls, c.took)
				}
			})
		})
	}
}

func TestFinish(t *testing.T) {
	for name, c := range map[string]struct {
		needs time.Duration // zero: until it is stopped
		want  error
	}{
		"all of it ends": {needs: time.Second},
		"some is left":   {want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				stopped := make(chan struct{})
				var work sync.WaitGroup
				work.Go(func() {
					if c.needs > 0 {
						<-time.After(c.needs)
						return
					}
					<-stopped
				})
				if err := Finish(ctx, &work, func() { close(stopped) }); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				work.Wait() // nothing is left
			})
		})
	}
}
