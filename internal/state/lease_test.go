package state_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

func TestALostTermEndsTheStoreWithoutAnybodyAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		first := storetest.OpenOn(t, j)
		sub := first.Watch(t.Context())
		storetest.OpenOn(t, j.Reopen())
		synctest.Wait()
		select {
		case <-first.Failed():
		default:
			t.Error("the store does not know")
		}
		if _, err := sub.Next(t.Context()); !errors.Is(err, state.ErrSubscriptionClosed) {
			t.Errorf("a subscriber: %v", err)
		}
		if err := first.Err(); !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// stuck is a journal whose database does not answer any more.
type stuck struct{ *memory.Journal }

func (stuck) Commit(ctx context.Context, _ int64, _ state.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stuck) Committed(ctx context.Context, _ string) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func TestALostTermLetsGoOfACommitThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		first := storetest.OpenOn(t, stuck{j})
		done := make(chan error)
		go func() {
			_, err := first.Update(t.Context(), put(vm("a")))
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		storetest.OpenOn(t, j.Reopen())
		if err := <-done; !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("update: %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// mute is a journal whose database stops answering in the middle of the load.
type mute struct{ *memory.Journal }

func (mute) Load(ctx context.Context, _ int) (*state.Loaded, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestALostTermLetsGoOfALoadThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		done := make(chan error)
		go func() {
			_, err := state.Open(t.Context(), state.Config{Journal: mute{j}, Lease: j})
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		storetest.OpenOn(t, j.Reopen())
		if err := <-done; !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("open: %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestTheSecretOfACandidateDoesNotShow(t *testing.T) {
	c := state.Candidate{Name: "box", Address: "https://box:8080", Secret: "hidden"}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "leader", c)
	err := state.HeldBy("the store", c)
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v %#v %s", c, c, c), log.String(), err.Error()} {
		if strings.Contains(text, "hidden") || !strings.Contains(text, "box") {
			t.Errorf("%q", text)
		}
	}
}

func TestALeaseInMemoryIsTakenOverOnlyWhenItIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 3 * time.Second
		j := memory.New(memory.Options{Lease: period})
		first := storetest.OpenOn(t, j)
		other := j.Reopen()
		for range 20 {
			<-time.After(time.Second)
			if _, err := other.Acquire(t.Context(), state.Candidate{Name: "other"}); !errors.Is(err, fleet.ErrNotLeader) {
				t.Fatalf("a held lease: %v", err)
			}
		}
		info, held, err := other.Leader(t.Context())
		if err != nil || !held || info.Term != first.Term() || info.Name != t.Name() || info.Expires.IsZero() {
			t.Errorf("leader %+v %v %v", info, held, err)
		}
		if left, lasting := first.LeaseLeft(); lasting || left <= 0 || left > period {
			t.Errorf("left %v", left)
		}
		if err := first.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, held, err := other.Leader(t.Context()); held || err != nil {
			t.Errorf("after the release: %v %v", held, err)
		}
		second := storetest.OpenOn(t, other)
		if second.Term() <= first.Term() {
			t.Errorf("term %d follows %d", second.Term(), first.Term())
		}
	})
}
