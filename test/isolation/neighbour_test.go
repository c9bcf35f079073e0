package isolation

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/guests"
)

// attacks are what a guest does that takes all it can get; the first is one that
// honestly computes, beside which a neighbour's share is measured.
var attacks = []struct{ name, command string }{
	{"computes", "while :; do :; done"},
	{"fork bomb", "b() { b | b & }; b; sleep 1000"},
	{"memory hog", "while :; do head -c 1000000000 /dev/zero | tail -c 900000000 >/dev/null; done"},
	{"disk hammer", "for n in 1 2 3 4; do while :; do dd if=/dev/zero of=/root/f$n bs=64k count=1024 conv=fsync 2>/dev/null; done & done; wait"},
	{"network flood", "/root/probe -flood " + guests.Public + ":82"},
}

// window is how long work is counted at a time.
const window = 5 * time.Second

// done is what a machine got done in a window: work, and the time of a command
// that does nothing.
type done struct {
	work int
	exec time.Duration
}

func measure(t *testing.T, m *guests.Machine) done {
	t.Helper()
	text := m.Run("/root/probe", "-work", window.String())
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Duration
	for range 9 {
		began := time.Now()
		m.Run("true")
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return done{n, times[len(times)/2]}
}

// beside measures a machine while another carries out a command.
func beside(t *testing.T, m, other *guests.Machine, command string) done {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = other.Guest().Exec(ctx, fleet.ExecSpec{Argv: []string{"sh", "-c", command}}, fleet.Stdio{}) // it is ended, or by what it does
	}()
	before := other.Spent()
	testkit.Eventually(t, guests.Within, "the other takes what it gets", func() bool {
		select {
		case <-ended:
			t.Fatalf("%q ended by itself", command)
		default:
		}
		return other.Spent() > before+0.5
	})
	got := measure(t, m)
	cancel()
	<-ended
	return got
}

// TestNeighbourKeepsItsShare measures what a machine gets done beside one that
// honestly computes, and beside one that attacks: at least four fifths of that.
// It is a matter of the soak, since it takes minutes, and the ratio of work that is
// done in turns, since the machine it runs on does other things too.
func TestNeighbourKeepsItsShare(t *testing.T) {
	rounds := testkit.Count(0, 5)
	if rounds == 0 {
		return
	}
	w := guests.NewWorld(t)
	h := guests.In(t, w, imagetest.Store(t))
	m, other := h.Boot("minimal", nil), h.Boot("minimal", nil)
	program, err := os.ReadFile(guests.Build(t, "./probe"))
	if err != nil {
		t.Fatal(err)
	}
	m.Put("/root/probe", program)
	other.Put("/root/probe", program)
	alone := measure(t, m)
	t.Logf("alone: %d KiB hashed in %v, a command in %v", alone.work, window, alone.exec)
	for _, a := range attacks[1:] {
		var share, left done
		for range rounds {
			s, l := beside(t, m, other, attacks[0].command), beside(t, m, other, a.command)
			share, left = done{share.work + s.work, share.exec + s.exec}, done{left.work + l.work, left.exec + l.exec}
		}
		ratio := float64(left.work) / float64(share.work)
		t.Logf("%s: %.2f of the share (%d KiB of %d), a command in %v instead of %v", a.name, ratio, left.work, share.work,
			left.exec/time.Duration(rounds), share.exec/time.Duration(rounds))
		if ratio < 0.8 {
			t.Errorf("%s: a neighbour keeps %.2f of its share", a.name, ratio)
		}
	}
	if got := other.Run("echo", "alive"); got != "alive\n" {
		t.Errorf("after its attacks the other says %q", got)
	}
}
