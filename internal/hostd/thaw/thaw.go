// Package thaw renews a guest that goes on from a capture and lets its
// processes go on, in that order and in no other: whatever fails leaves the
// guest shut, and its machine is to be ended. What was renewed is its
// certificate.
package thaw

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/sshkey"
	"github.com/fusevm/fuse/internal/uid"
)

const (
	// ClockWithin is how far a guest's clock may be from its host's when its
	// processes go on.
	ClockWithin = 500 * time.Millisecond
	// Limit bounds a renewal, and then the letting go on.
	Limit = 30 * time.Second
	// tries of a renewal: one whose answer was lost, or came too late to tell the
	// clock by.
	tries   = 6
	entropy = 64 // bytes
)

// ErrLate says that host or guest were too slow, not that anything is wrong with
// the capture.
var ErrLate = errors.New("too slow")

// Guest is a guest agent that can be renewed; *guestwire.Client is one.
type Guest interface {
	Renew(ctx context.Context, thawKey string, r guestwire.Renewal) (guestwire.Renewed, error)
	Thaw(ctx context.Context, thawKey, generation string) (told int, held time.Duration, err error)
	WriteFiles(ctx context.Context, files []fleet.GuestFile) error
}

// Request is one guest to thaw.
type Request struct {
	Key      string // of the capture
	Cause    string // fleet.ThawFork …
	VM       driver.VM
	Identity driver.Identity
	// SSHKeys are the kinds of ssh host keys that the guest has.
	SSHKeys []string
	// Files are written once it is renewed, and before any process goes on.
	Files []fleet.GuestFile
	// Renewed, if set, is called like that after them.
	Renewed func(ctx context.Context) error
	// Keep, if set, is called when all is renewed, before any process goes on.
	Keep func(ctx context.Context) error
	// Address and Nameservers are those of its network; empty: not checked.
	Address     string
	Nameservers []string
	// Grow says that its disk is larger than the captured machine's.
	Grow bool
}

// Of makes a guest of a machine that goes on renewable; false if its agent
// cannot be renewed.
func Of(g driver.Guest) (Guest, bool) {
	out, ok := g.(Guest)
	return out, ok
}

// Do renews a guest and lets it go on.
func Do(ctx context.Context, g Guest, r Request) (fleet.Certificate, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	c := fleet.Certificate{Cause: r.Cause, Generation: uid.New()}
	renewal, err := r.renewal(c.Generation)
	if err != nil {
		return c, err
	}
	done, err := renew(ctx, g, r.Key, renewal)
	if err != nil {
		return c, notRenewed(err)
	}
	c.Renewed, c.Clock = done.Items, done.Set
	if len(r.Files) > 0 {
		if err := g.WriteFiles(ctx, r.Files); err != nil {
			return c, notRenewed(err)
		}
	}
	if r.Renewed != nil {
		if err := r.Renewed(ctx); err != nil {
			return c, notRenewed(err)
		}
	}
	// All but the processes must be there before these go on.
	whole := c
	whole.Renewed = append(whole.Renewed[:len(whole.Renewed):len(whole.Renewed)], fleet.Renewal{Name: fleet.RenewedProcesses})
	if lacks := whole.Lacks(); len(lacks) > 0 {
		return c, notRenewed(fmt.Errorf("the guest did not renew %s", strings.Join(lacks, ", ")))
	}
	if r.Keep != nil {
		if err := r.owe(c.Generation); err != nil {
			return c, err
		}
		if err := r.Keep(ctx); err != nil {
			return c, err
		}
	}
	// A machine that counts cannot go back any more: what the renewal took of the
	// time is not taken from this.
	told, held, err := open(caller, g, r.Key, c.Generation)
	if err != nil {
		return c, notRenewed(err)
	}
	r.paid()
	c.Held, c.At = held, time.Now().UTC()
	c.Renewed = append(c.Renewed, fleet.Renewal{Name: fleet.RenewedProcesses, Detail: fmt.Sprintf("%d told", told)})
	return c, nil
}

func notRenewed(err error) error {
	return fleet.Wrap(fleet.CodeInternal, err, "the machine could not be renewed and does not go on: "+err.Error()).
		With(fleet.DetailStep, "thaw")
}

func (r Request) renewal(generation string) (guestwire.Renewal, error) {
	out := guestwire.Renewal{
		Generation: generation, Cause: r.Cause, Entropy: make([]byte, entropy), VMID: r.VM.ID,
		Hostname: r.Identity.Hostname, MachineID: r.Identity.MachineID,
		Token: r.Identity.Token, CertPEM: r.Identity.CertPEM, KeyPEM: r.Identity.KeyPEM, Grow: r.Grow,
		Address: r.Address, Nameservers: r.Nameservers,
	}
	if _, err := tls.X509KeyPair(out.CertPEM, out.KeyPEM); err != nil && len(out.CertPEM) > 0 {
		return out, fmt.Errorf("the machine's certificate and its key cannot be used together: %w", err)
	}
	_, _ = rand.Read(out.Entropy) // never fails
	if r.Cause == fleet.ThawRestore || r.Cause == fleet.ThawResume {
		return out, nil
	}
	for _, kind := range r.SSHKeys {
		private, public, err := sshkey.Make(kind, "root@"+out.Hostname)
		if err != nil {
			continue // the guest removes what nobody can make
		}
		out.SSHKeys = append(out.SSHKeys, guestwire.SSHKey{Kind: kind, Private: private, Public: public})
	}
	return out, nil
}

// renew renews until the guest's clock is known to be right. Each try carries
// the time at which it is made.
func renew(ctx context.Context, g Guest, key string, r guestwire.Renewal) (guestwire.Renewed, error) {
	var last error
	var set time.Duration
	for try := range tries {
		begun := time.Now()
		done, err := g.Renew(ctx, key, r)
		if err != nil {
			last = errors.Join(ErrLate, err)
			if !passing(err) {
				return done, err
			}
			continue
		}
		if try == 0 || set == 0 {
			set = done.Set
		}
		done.Set = set
		// The guest read its clock at some moment between the two.
		now := time.Now()
		if off := furthest(done.Now, begun, now); off <= ClockWithin {
			return done, nil
		}
		last = fmt.Errorf("%w: the guest's clock cannot be told to be within %s of the host's: the call took %s", ErrLate, ClockWithin, now.Sub(begun).Round(time.Millisecond))
	}
	return guestwire.Renewed{}, last
}

// furthest is how far a clock that was read between two moments can be from
// the one that those were read from.
func furthest(read, from, to time.Time) time.Duration {
	return max(read.Sub(from), from.Sub(read), read.Sub(to), to.Sub(read))
}

// Booted is the certificate of a machine that booted from another one's disk:
// the boot gave it what a boot gives, the rest its agent says. One whose agent
// did not see that the disk was another's shares keys with it.
func Booted(cause string, info fleet.GuestInfo) (*fleet.Certificate, error) {
	if len(info.Anew) == 0 {
		return nil, notRenewed(errors.New("the guest did not see that its disk was another machine's: its /etc cannot be written"))
	}
	c := &fleet.Certificate{Cause: cause, Generation: info.BootID, At: time.Now().UTC()}
	said := map[string]string{}
	for _, r := range info.Anew {
		said[r.Name] = r.Detail
	}
	for _, name := range fleet.CertificateNames {
		detail, ok := said[name]
		if !ok {
			detail = "by the boot"
		}
		c.Renewed = append(c.Renewed, fleet.Renewal{Name: name, Detail: detail})
	}
	return c, nil
}
