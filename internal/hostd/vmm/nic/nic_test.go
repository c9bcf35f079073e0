package nic

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/hostd/ports"
)

// The port of a guest with user networking is neither one that the host publishes
// nor one that a connection of another program may have got meanwhile.
func TestUserPortsAreNobodyElses(t *testing.T) {
	const firstOfConnections = 32768 // as Linux has it
	for range 200 {
		n, err := User()
		if err != nil {
			t.Fatal(err)
		}
		if p := n.Port; p < 1024 || p >= firstOfConnections || p >= ports.DefaultRange.First && p <= ports.DefaultRange.Last {
			t.Fatalf("the port is %d", p)
		}
	}
}

func TestHedgedConnects(t *testing.T) {
	refused := errors.New("connection refused")
	for name, c := range map[string]struct {
		silentFor, refusesFor time.Duration // from the start
		answer                time.Duration // how long a packet takes to be answered
		within                time.Duration
	}{
		"a guest that is up":      {0, 0, time.Millisecond, 2 * time.Millisecond},
		"one that refuses first":  {0, 300 * time.Millisecond, time.Millisecond, 320 * time.Millisecond},
		"one that is silent":      {3 * time.Second, 0, time.Millisecond, 3*time.Second + 100*time.Millisecond},
		"one that is very slow":   {8 * time.Second, 0, time.Second, 10 * time.Second},
		"silent, then it refuses": {time.Second, 2 * time.Second, time.Millisecond, 2*time.Second + 100*time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			var open, most atomic.Int32
			dial := func(ctx context.Context) (net.Conn, error) {
				most.Store(max(most.Load(), open.Add(1)))
				defer open.Add(-1)
				if time.Since(begun) < c.silentFor {
					<-ctx.Done() // the packet is lost
					return nil, ctx.Err()
				}
				select {
				case <-time.After(c.answer):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				if time.Since(begun) < c.refusesFor {
					return nil, refused
				}
				a, b := net.Pipe()
				b.Close()
				return a, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			conn, err := Hedged(ctx, dial)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			conn.Close()
			if took := time.Since(begun); took > c.within {
				t.Errorf("%s: connected after %v, want %v at most", name, took, c.within)
			}
			if most.Load() > 2+attempts {
				t.Errorf("%s: %d attempts at a time", name, most.Load())
			}
		})
	}
}

func TestHedgedGivesUpWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		refused := errors.New("connection refused")
		_, err := Hedged(ctx, func(context.Context) (net.Conn, error) { return nil, refused })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, refused) {
			t.Errorf("%v", err)
		}
	})
}
