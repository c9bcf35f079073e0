package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeylock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newKeylock()
		unlock, err := k.lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := k.lock(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		other()

		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		if _, err := k.lock(ctx, "a"); !errors.Is(err, late) {
			t.Errorf("a second holder got %v", err)
		}
		got := make(chan func())
		go func() {
			u, _ := k.lock(t.Context(), "a")
			got <- u
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Error("two hold the key")
		default:
		}
		unlock()
		(<-got)()
		if len(k.locks) != 0 {
			t.Errorf("%d locks are kept", len(k.locks))
		}
	})
}
