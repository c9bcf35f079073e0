package uid

import (
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

func TestNewRisesAndIsValid(t *testing.T) {
	last := ""
	for range 10_000 {
		id := New()
		if !Valid(id) || len(id) != 26 {
			t.Fatalf("%q is not a ULID", id)
		}
		if id <= last {
			t.Fatalf("%q follows %q", id, last)
		}
		last = id
	}
}

func TestNextRisesWhenTheClockStepsBack(t *testing.T) {
	m := &maker{entropy: ulid.Monotonic(rand.Reader, 0)}
	now := time.Now()
	first := m.next(now)
	if second := m.next(now.Add(-time.Hour)); second <= first {
		t.Errorf("%q follows %q", second, first)
	}
}

func TestNextTakesTheNextMillisecondWhenEntropyIsUsedUp(t *testing.T) {
	m := &maker{entropy: &usedUp{MonotonicReader: ulid.Monotonic(rand.Reader, 0)}}
	now := time.Now()
	id, err := ulid.ParseStrict(m.next(now))
	if err != nil {
		t.Fatal(err)
	}
	if want := ulid.Timestamp(now) + 1; id.Time() != want {
		t.Errorf("made in millisecond %d, want %d", id.Time(), want)
	}
}

type usedUp struct {
	ulid.MonotonicReader
	asked bool
}

func (u *usedUp) MonotonicRead(ms uint64, p []byte) error {
	if !u.asked {
		u.asked = true
		return ulid.ErrMonotonicOverflow
	}
	return u.MonotonicReader.MonotonicRead(ms, p)
}

func TestNewIsUniqueAcrossGoroutines(t *testing.T) {
	const workers, each = 8, 500
	made := make([][]string, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				made[w] = append(made[w], New())
			}
		})
	}
	wg.Wait()
	all := slices.Concat(made...)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != workers*each {
		t.Errorf("%d distinct ids, want %d", n, workers*each)
	}
}

func TestValidRefuses(t *testing.T) {
	for _, s := range []string{"", "x", strings.ToLower(New()), New() + "0", strings.Repeat("Z", 26), "../../../etc/passwd-------"} {
		if Valid(s) {
			t.Errorf("%q counts as a ULID", s)
		}
	}
}
