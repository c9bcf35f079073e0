package thaw

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// guest is one whose every part can fail.
type guest struct {
	lacks    string // what it does not renew
	slow     int    // renewals that take long
	lost     int    // renewals whose answer is lost
	off      time.Duration
	renewErr error
	filesErr error
	thawErr  error

	renewals []guestwire.Renewal
	calls    []string
	runs     bool // its processes
}

func (g *guest) Renew(_ context.Context, key string, r guestwire.Renewal) (guestwire.Renewed, error) {
	g.calls = append(g.calls, "renew")
	if key != "key" {
		return guestwire.Renewed{}, fleet.Errorf(fleet.CodeInternal, "wrong key")
	}
	if g.renewErr != nil {
		return guestwire.Renewed{}, g.renewErr
	}
	g.renewals = append(g.renewals, r)
	out := guestwire.Renewed{Now: time.Now().Add(g.off), Set: time.Hour}
	if len(g.renewals) > 1 {
		out.Set = time.Millisecond
	}
	for _, name := range fleet.CertificateNames {
		if name != g.lacks && name != fleet.RenewedProcesses {
			out.Items = append(out.Items, fleet.Renewal{Name: name})
		}
	}
	if g.slow > 0 {
		g.slow--
		<-time.After(time.Second)
	}
	if g.lost > 0 {
		g.lost--
		return guestwire.Renewed{}, fleet.Errorf(fleet.CodeUnavailable, "lost")
	}
	return out, nil
}

func (g *guest) WriteFiles(context.Context, []fleet.GuestFile) error {
	g.calls = append(g.calls, "files")
	return g.filesErr
}

func (g *guest) Thaw(context.Context, string, string) (int, time.Duration, error) {
	g.calls = append(g.calls, "thaw")
	if g.thawErr != nil {
		return 0, 0, g.thawErr
	}
	g.runs = true
	return 2, time.Second, nil
}

func request() Request {
	return Request{
		Key: "key", Cause: fleet.ThawFork, VM: driver.VM{ID: "vm-1"}, Identity: driver.Identity{Hostname: "box", MachineID: "m", Token: "t"},
		SSHKeys: []string{"ed25519", "unheard-of"}, Files: []fleet.GuestFile{{Path: "/fuse/secrets.json"}},
	}
}

func TestThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &guest{slow: 1, lost: 1}
		c, err := Do(t.Context(), g, request())
		if err != nil {
			t.Fatal(err)
		}
		if lacks := c.Lacks(); len(lacks) > 0 {
			t.Errorf("the certificate lacks %v", lacks)
		}
		// The lost one took long; the next was in time.
		if want := []string{"renew", "renew", "files", "thaw"}; !slices.Equal(g.calls, want) {
			t.Errorf("calls %v, want %v", g.calls, want)
		}
		if c.Held != time.Second || c.At.IsZero() {
			t.Errorf("%+v", c)
		}
		first, last := g.renewals[0], g.renewals[len(g.renewals)-1]
		if first.Generation != last.Generation || first.Generation == "" || len(first.Entropy) < 32 || len(first.SSHKeys) != 1 {
			t.Errorf("%+v", first)
		}
		if again, err := Do(t.Context(), &guest{}, request()); err != nil || again.Generation == c.Generation {
			t.Errorf("two continuations share a generation: %v", err)
		}
	})
}

// The guest takes the certificate as it is told.
func TestACertificateThatDoesNotFitIsNotTold(t *testing.T) {
	g, r := &guest{}, request()
	r.Identity.CertPEM, r.Identity.KeyPEM = []byte("no certificate"), []byte("no key")
	if _, err := Do(t.Context(), g, r); err == nil || !strings.Contains(err.Error(), "cannot be used together") || len(g.calls) > 0 {
		t.Errorf("error %v, calls %v", err, g.calls)
	}
}

// Whatever goes wrong, no process runs.
func TestShutWhateverFails(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]guest{
		"the renewal":         {renewErr: broken},
		"no answer":           {lost: tries},
		"always too slow":     {slow: tries},
		"the clock is behind": {off: -time.Second},
		"the clock is ahead":  {off: time.Second},
		"the files":           {filesErr: broken},
		"the thaw":            {thawErr: broken},
	}
	for _, name := range fleet.CertificateNames {
		if name != fleet.RenewedProcesses {
			cases["no "+name] = guest{lacks: name}
		}
	}
	for name, g := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := Do(t.Context(), &g, request())
				if err == nil || g.runs {
					t.Errorf("error %v, processes run: %v", err, g.runs)
				}
				var fe *fleet.Error
				if !errors.As(err, &fe) || fe.Details[fleet.DetailStep] != "thaw" {
					t.Errorf("error %v does not name the step", err)
				}
			})
		})
	}
}

func TestAMachineThatGoesOnKeepsItsKeys(t *testing.T) {
	g := &guest{}
	r := request()
	r.Cause = fleet.ThawResume
	if _, err := Do(t.Context(), g, r); err != nil || len(g.renewals[0].SSHKeys) != 0 {
		t.Error(err)
	}
}

func TestADiskThatWasAnothersIsCertified(t *testing.T) {
	c, err := Booted(fleet.ThawFork, fleet.GuestInfo{BootID: "b", Anew: []fleet.Renewal{{Name: fleet.RenewedSSHKeys, Detail: "2 keys"}}})
	if err != nil || len(c.Lacks()) > 0 || !slices.Contains(c.Renewed, fleet.Renewal{Name: fleet.RenewedSSHKeys, Detail: "2 keys"}) {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := Booted(fleet.ThawFork, fleet.GuestInfo{BootID: "b"}); err == nil {
		t.Error("a disk that nobody saw to be another's was certified")
	}
}
