package keylock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func take(t *testing.T, k *Lock, key string) func() {
	t.Helper()
	unlock, err := k.Take(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

func TestOneHolderPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Lock
		unlock := take(t, &k, "a")
		take(t, &k, "b")() // another key is free
		inside, most := 0, 0
		done := make(chan struct{})
		for range 10 {
			go func() {
				unlock := take(t, &k, "a")
				inside++
				most = max(most, inside)
				<-time.After(time.Second)
				inside--
				unlock()
				done <- struct{}{}
			}()
		}
		synctest.Wait()
		if inside != 0 {
			t.Error("two hold the key")
		}
		unlock()
		for range 10 {
			<-done
		}
		if most != 1 || len(k.held) != 0 {
			t.Errorf("%d held the key at once, %d keys are kept", most, len(k.held))
		}
	})
}

func TestWaitersObeyTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Lock
		unlock := take(t, &k, "a")
		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		if _, err := k.Take(ctx, "a"); !errors.Is(err, late) {
			t.Errorf("a held key: %v", err)
		}
		unlock()
		if len(k.held) != 0 {
			t.Errorf("%d keys are kept", len(k.held))
		}
	})
}
