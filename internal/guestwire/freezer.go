package guestwire

import (
	"context"
	"crypto/sha256"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// FreezeOptions say what is to stand still. Processes is for a capture of the
// memory, Filesystem for one of the disk alone.
type FreezeOptions struct {
	Processes  bool
	Filesystem bool
	Limit      time.Duration // at most so long; zero: the guest's own, 10 s
	// ThawKey opens Renew and Thaw in what is made of the capture. The guest
	// gets its hash only, so that no capture holds it.
	ThawKey string
}

// Frozen is what stands still, and how long it took.
type Frozen struct {
	Froze, Synced time.Duration
	Processes     int
	SSHKeys       []string // kinds of host keys that are there
	WireVersion   int
}

// Renewal is what a machine made of a capture gets anew.
type Renewal struct {
	Generation          string // the identity of this continuation
	Cause               string // fleet.ThawFork …
	Entropy             []byte
	VMID                string
	Hostname, MachineID string
	Token               string
	CertPEM, KeyPEM     []byte
	Address             string // with prefix, as in the boot configuration; empty: not checked
	Nameservers         []string
	SSHKeys             []SSHKey
	Grow                bool // the disk may be larger than the filesystem
}

// SSHKey is one host key as sshd keeps it in /etc/ssh/ssh_host_KIND_key.
type SSHKey struct {
	Kind            string
	Private, Public []byte
}

// Renewed is what the guest says it renewed, and its clock's reading.
type Renewed struct {
	Items []fleet.Renewal
	Now   time.Time
	Set   time.Duration // how far the clock was set
}

// Freeze makes the guest fit to be captured.
func (c *Client) Freeze(ctx context.Context, o FreezeOptions) (Frozen, error) {
	req := &guestwirev1.FreezeRequest{Processes: o.Processes, Filesystem: o.Filesystem, LimitMs: o.Limit.Milliseconds()}
	if o.ThawKey != "" {
		sum := sha256.Sum256([]byte(o.ThawKey))
		req.KeyHash = sum[:]
	}
	res, err := c.freezer.Freeze(ctx, connect.NewRequest(req))
	if err != nil {
		return Frozen{}, clientError(ctx, "freeze the guest", err)
	}
	m := res.Msg
	return Frozen{
		Froze: time.Duration(m.FrozeUs) * time.Microsecond, Synced: time.Duration(m.SyncedUs) * time.Microsecond,
		Processes: int(m.Processes), SSHKeys: m.SshHostKeys, WireVersion: int(m.WireVersion),
	}, nil
}

// Release lets the captured guest go on and says how long it stood still.
// Where nothing stands still it is success.
func (c *Client) Release(ctx context.Context) (time.Duration, error) {
	res, err := c.freezer.Release(ctx, connect.NewRequest(&guestwirev1.ReleaseRequest{}))
	if err != nil {
		return 0, clientError(ctx, "let the guest go on", err)
	}
	return time.Duration(res.Msg.HeldUs) * time.Microsecond, nil
}

// Renew gives a guest that was made of a capture its own identity. The host's
// clock is read as the call is made.
func (c *Client) Renew(ctx context.Context, thawKey string, r Renewal) (Renewed, error) {
	m := &guestwirev1.RenewRequest{
		Generation: r.Generation, Cause: r.Cause, Entropy: r.Entropy, VmId: r.VMID, Hostname: r.Hostname, MachineId: r.MachineID,
		Token: r.Token, Cert: r.CertPEM, Key: r.KeyPEM, Grow: r.Grow,
		Network: &guestwirev1.RenewNetwork{Address: r.Address, Nameservers: r.Nameservers},
	}
	for _, k := range r.SSHKeys {
		m.SshHostKeys = append(m.SshHostKeys, &guestwirev1.RenewSSHKey{Kind: k.Kind, Private: k.Private, Public: k.Public})
	}
	m.NowUnixNs = time.Now().UnixNano()
	res, err := c.freezer.Renew(ctx, withKey(connect.NewRequest(m), thawKey))
	if err != nil {
		return Renewed{}, clientError(ctx, "renew the guest", err)
	}
	out := Renewed{Now: time.Unix(0, res.Msg.NowUnixNs), Set: time.Duration(res.Msg.ClockUs) * time.Microsecond}
	for _, i := range res.Msg.Renewed {
		out.Items = append(out.Items, fleet.Renewal{Name: i.Name, Detail: i.Detail})
	}
	return out, nil
}

// Thaw lets the processes of a renewed guest go on. held is how long they stood
// still by the guest's own clock.
func (c *Client) Thaw(ctx context.Context, thawKey, generation string) (told int, held time.Duration, err error) {
	res, err := c.freezer.Thaw(ctx, withKey(connect.NewRequest(&guestwirev1.ThawRequest{Generation: generation}), thawKey))
	if err != nil {
		return 0, 0, clientError(ctx, "thaw the guest", err)
	}
	return int(res.Msg.Told), time.Duration(res.Msg.HeldUs) * time.Microsecond, nil
}

func withKey[T any](req *connect.Request[T], key string) *connect.Request[T] {
	req.Header().Set("Authorization", "Bearer "+key)
	return req
}
