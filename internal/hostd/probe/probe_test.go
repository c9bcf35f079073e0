package probe

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// machine is a driver that says what it is told to.
type machine struct {
	driver.Driver
	facts driver.Facts
	err   error
	asked int
}

func (m *machine) Probe(ctx context.Context) (driver.Facts, error) {
	m.asked++
	return m.facts, errors.Join(m.err, ctx.Err())
}

// A host that is asked again tells what it has now, what its operator set aside,
// and what it knew where it cannot tell; it is not probed at every question.
func TestInfoIsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{facts: driver.Facts{Driver: "sim", CPUs: 4, RamMB: 1000, StorageGB: 10}}
		p := New(Config{Driver: m, Capacity: fleet.HostCapacity{CPUs: 2}, Logger: slog.New(slog.DiscardHandler)})
		p.Run(t.Context())
		info := func() fleet.HostCapacity {
			t.Helper()
			i, err := p.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return i.Capacity
		}
		m.facts.CPUs, m.facts.StorageGB = 64, 20
		if c := info(); c.StorageGB != 10 || m.asked != 1 {
			t.Errorf("asked %d times, has %+v", m.asked, c)
		}
		<-time.NewTimer(fresh).C
		if c := info(); c.StorageGB != 20 || c.CPUs != 2 || c.VMCount != defaultVMCount {
			t.Errorf("has %+v", c)
		}
		m.facts, m.err = driver.Facts{}, errors.New("no disk")
		<-time.NewTimer(fresh).C
		if c := info(); c.StorageGB != 20 || m.asked != 3 {
			t.Errorf("asked %d times, has %+v", m.asked, c)
		}
		if info(); m.asked != 3 {
			t.Error("a probe that went wrong is repeated at once")
		}
	})
}
